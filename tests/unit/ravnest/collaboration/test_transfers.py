import contextlib

import pytest
import torch

from ravnest.collaboration.messages import PieceMessage, TensorMessage, TransferMessage
from ravnest.collaboration.transfers import PIECE_BYTES, WINDOW, Form, Incoming, Outgoing, Said, form_in_words, pieces
from ravnest.errors import InvalidInput

FORMS = [Form("a", torch.float32, 100_000), Form("none", torch.float32, 0), Form("n", torch.int64, 3)]
VECTORS = [torch.randn(100_000), torch.zeros(0), torch.tensor([1, 2, 3])]


def said() -> list[Said]:
    return list(pieces("state", 7, 0, list(zip(FORMS, VECTORS, strict=True))))


def fed(messages: list[Said], forms: list[Form] = FORMS) -> Incoming:
    began = messages[0][0]
    assert isinstance(began, TransferMessage)
    incoming = Incoming(began, forms)
    for message, tensors in messages[1:]:
        if isinstance(message, TensorMessage):
            incoming.take_tensor(message)
        else:
            assert isinstance(message, PieceMessage)
            incoming.take_piece(message, tensors)
    return incoming


def test_a_transfer_arrives_as_it_was_sent() -> None:
    incoming = fed(said())
    assert incoming.whole
    assert incoming.step == 7
    for form, vector in zip(FORMS, VECTORS, strict=True):
        assert torch.equal(incoming.vectors[form.name], vector)
    assert not fed(said()[:-1]).whole


@pytest.mark.parametrize(
    "change",
    [
        lambda sent: [sent[0], sent[2], *sent[3:]],  # a piece before its vector
        lambda sent: [sent[0], sent[1], sent[3], sent[2], *sent[4:]],  # pieces in another order
        lambda sent: [sent[0], (TensorMessage(name="b", dtype="float32", elements=100_000), ())],
        lambda sent: [sent[0], (TensorMessage(name="a", dtype="float32", elements=1 << 50), ())],
        lambda sent: [sent[0], (TensorMessage(name="a", dtype="object", elements=100_000), ())],
        lambda sent: [*sent[:2], (sent[2][0], (torch.full((PIECE_BYTES // 4,), float("nan")),))],
        lambda sent: [*sent[:2], (sent[2][0], (torch.zeros(5),))],
        lambda sent: [*sent[:2], (sent[2][0], ())],
        lambda sent: [*sent[:-1], (sent[-1][0], (torch.zeros(3),))],
        lambda sent: [(TransferMessage(what="state", step=7, tensors=2, samples=0), ())],
    ],
)
def test_anything_else_than_what_is_due_is_refused(change: "object") -> None:
    with pytest.raises(InvalidInput):
        fed(change(said()))  # type: ignore[operator]


def test_few_pieces_are_under_way_until_the_other_side_has_taken_some() -> None:
    outgoing = Outgoing()
    form = Form("a", torch.float32, 20 * PIECE_BYTES // 4)
    outgoing.put(pieces("state", 0, 0, [(form, torch.zeros(form.elements))]))
    first = list(outgoing.due())
    assert sum(isinstance(message, PieceMessage) for message, _ in first) == WINDOW
    assert list(outgoing.due()) == []
    outgoing.got(3)
    assert sum(isinstance(message, PieceMessage) for message, _ in outgoing.due()) == 3
    with pytest.raises(InvalidInput):
        outgoing.got(10_000)
    with pytest.raises(InvalidInput):
        outgoing.got(1)
    assert not outgoing.settled
    for taken in range(4, 21):
        outgoing.got(taken)
        list(outgoing.due())
    assert outgoing.settled


def test_models_with_other_parameters_or_another_wire_are_told_apart() -> None:
    forms = [[Form("g", torch.float32, 146, wire)] for wire in ("exact", "int8")] + [[Form("g", torch.float32, 147)]]
    assert len({form_in_words(one) for one in forms}) == 3


def test_numbers_whose_sum_could_overflow_are_no_contribution() -> None:
    form = Form("g", torch.float32, 2)
    for what, taken in [("contribution", False), ("average", True)]:
        incoming = Incoming(TransferMessage(what=what, step=0, tensors=1, samples=8), [form])  # type: ignore[arg-type]
        incoming.take_tensor(TensorMessage(name="g", dtype="float32", elements=2))
        with contextlib.nullcontext() if taken else pytest.raises(InvalidInput, match="beyond"):
            incoming.take_piece(PieceMessage(start=0, stop=2), (torch.tensor([1.0, 3e38]),))


def test_what_is_handed_on_for_one_visit_is_cancelled_alone_though_it_has_begun() -> None:
    outgoing, form = Outgoing(), Form("w", torch.float32, 20 * PIECE_BYTES // 4)
    for step, visit in ((1, 7), (2, 8), (3, 7), (4, None)):
        outgoing.put(pieces("state", step, 0, [(form, torch.zeros(form.elements))]), visit=visit)
    said = list(outgoing.due())
    outgoing.cancel_of({7})
    taken, began = 0, list[int]()
    while not outgoing.settled:
        taken += sum(isinstance(message, PieceMessage) for message, _ in said)
        outgoing.got(taken)
        said = list(outgoing.due())
        began += [message.step for message, _ in said if isinstance(message, TransferMessage)]
    assert began == [2, 4]


def test_a_state_takes_the_place_of_what_waits_and_it_is_known_whether_all_was_had_once() -> None:
    outgoing, form = Outgoing(), Form("w", torch.float32, 3 * PIECE_BYTES // 4)
    state, average = ([*pieces(what, 7, 0, [(form, torch.zeros(form.elements))])] for what in ("state", "average"))
    outgoing.put(iter(average))
    outgoing.put_state(iter(state))
    outgoing.put(iter(average))
    assert len(outgoing) == 2
    said = [message for message, _ in outgoing.due(3)]
    assert said == [message for message, _ in state]
    assert outgoing.has_state
    outgoing.got(1)
    assert len(list(outgoing.due(3))) == 3, "the next one, up to its first piece"
    assert not outgoing.has_state
    outgoing.got(4)
    assert outgoing.taken_bytes == 4 * PIECE_BYTES
    assert not outgoing.had_all
    list(outgoing.due())
    outgoing.put(iter(average))
    list(outgoing.due())
    assert not outgoing.had_all
    outgoing.got(6)
    assert outgoing.had_all
    assert not outgoing.settled
    outgoing.count_anew()
    assert not outgoing.had_all
    outgoing.got(9)
    assert outgoing.had_all
