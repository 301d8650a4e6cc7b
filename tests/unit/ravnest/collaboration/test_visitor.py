import pytest
import torch

from ravnest.collaboration.messages import (
    PROTOCOL,
    HelloMessage,
    PieceMessage,
    TensorMessage,
    TransferMessage,
    signed_part,
)
from ravnest.collaboration.packing import Packing
from ravnest.collaboration.transfers import Form
from ravnest.collaboration.visitor import END_SIGN_IN_S, HEAR_S, Visitor
from ravnest.dht import new_identity
from ravnest.errors import InvalidInput

FORMS = [Form("g", torch.float32, 4)]


def hello(visitor: Visitor, name: str = "ada", backbone: str = "b", protocol: int = PROTOCOL) -> HelloMessage:
    identity = new_identity()
    signature = identity.sign(signed_part(visitor.nonce, backbone, "ada"))
    return HelloMessage(protocol=protocol, name=name, public_key=identity.public_key, signature=signature)


def test_a_signature_of_the_nonce_proves_the_key() -> None:
    visitor = Visitor(3, 0.0)
    said = hello(visitor)
    assert visitor.prove(said, "b", new_identity()) == said.public_key.hex()
    assert visitor.peer == "ada#3"


@pytest.mark.parametrize("wrong", [{"name": "eve"}, {"backbone": "c"}, {"protocol": 99}])
def test_another_name_backbone_or_protocol_is_refused(wrong: dict[str, object]) -> None:
    visitor = Visitor(0, 0.0)
    with pytest.raises(InvalidInput):
        visitor.prove(hello(visitor, **wrong), "b", new_identity())  # type: ignore[arg-type]


def test_a_signature_for_another_line_is_refused() -> None:
    with pytest.raises(InvalidInput, match="signature"):
        Visitor(0, 0.0).prove(hello(Visitor(1, 0.0)), "b", new_identity())


def test_the_rest_of_a_refused_contribution_is_passed_over_and_the_next_one_counts() -> None:
    visitor = Visitor(0, 0.0)
    began = TransferMessage(what="contribution", step=0, tensors=1, samples=8)
    tensor = TensorMessage(name="g", dtype="float32", elements=4)
    piece = PieceMessage(start=0, stop=4)
    visitor.begin(began, Packing(FORMS), 100)
    assert visitor.take(tensor, ()) is None
    with pytest.raises(InvalidInput, match="NaN"):
        visitor.take(piece, (torch.tensor([1.0, float("nan"), 0.0, 0.0]),))
    assert visitor.take(piece, (torch.zeros(4),)) is None
    visitor.begin(began, Packing(FORMS), 100)
    visitor.take(tensor, ())
    whole = visitor.take(piece, (torch.ones(4),))
    assert whole is not None
    assert whole.samples == 8
    assert visitor.taken == 3


@pytest.mark.parametrize(("what", "samples"), [("contribution", 0), ("contribution", 101), ("state", 8)])
def test_a_transfer_that_no_contribution_is_is_refused(what: str, samples: int) -> None:
    with pytest.raises(InvalidInput):
        Visitor(0, 0.0).begin(TransferMessage(what=what, step=0, tensors=1, samples=samples), Packing(FORMS), 100)  # type: ignore[arg-type]


def test_the_end_waits_for_who_has_agreed_and_only_a_while_for_others_and_for_who_was_told() -> None:
    visitor, ended_s = Visitor(0, 100.0), 200.0
    assert visitor.is_awaited(100.0 + END_SIGN_IN_S - 1.0, ended_s)
    assert not visitor.is_awaited(100.0 + END_SIGN_IN_S, ended_s)
    visitor.agreed = True
    assert visitor.is_awaited(1000.0, ended_s)
    visitor.told_s = 1000.0
    assert visitor.is_awaited(1000.0 + HEAR_S - 1.0, ended_s)
    assert not visitor.is_awaited(1000.0 + HEAR_S, ended_s)


def test_who_does_not_say_who_it_is_cannot_hold_the_end_up_by_coming_again() -> None:
    ended_s = 100.0
    came = [Visitor(line, ended_s + after_s) for line, after_s in enumerate((0.0, 9.0, 18.0))]
    assert [visitor.is_awaited(visitor.opened_s, ended_s) for visitor in came] == [True, True, False]
    assert not came[1].is_awaited(ended_s + END_SIGN_IN_S, ended_s)
    came[2].name = "ada"
    assert came[2].is_awaited(came[2].opened_s + END_SIGN_IN_S - 1.0, ended_s)
