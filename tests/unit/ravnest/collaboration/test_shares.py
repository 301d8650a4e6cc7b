import pytest
import torch

from ravnest.collaboration import transfers
from ravnest.collaboration.low_rank import LowRank
from ravnest.collaboration.messages import PieceMessage, TensorMessage, TransferMessage
from ravnest.collaboration.packing import Feedback, Packing
from ravnest.collaboration.shares import Division, division_by, in_part
from ravnest.collaboration.transfers import Form, Incoming, Said
from ravnest.errors import InvalidInput
from ring_allreduce.ring import Wire

SIZE = 16
"""Elements of a piece."""


@pytest.fixture(autouse=True)
def short_pieces(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(transfers, "PIECE_BYTES", 4 * SIZE)


def packing_of(wire: Wire = "exact", elements: int = 100) -> Packing:
    return Packing([Form("gradients", torch.float32, elements, wire), Form("statistics", torch.float32, 3)])


def said_of(packing: Packing, samples: int = 4) -> list[Said]:
    draw = torch.Generator().manual_seed(0)
    vectors = [torch.randn(form.elements, generator=draw) * samples for form in packing.sent]
    return list(Feedback(packing).pieces("contribution", 5, samples, vectors, float(samples), [(0, 2), (7, 1)]))


def taken(packing: Packing, said: list[Said]) -> Incoming:
    began = said[0][0]
    assert isinstance(began, TransferMessage)
    incoming = packing.incoming(began)
    for message, tensors in said[1:]:
        if isinstance(message, TensorMessage):
            incoming.take_tensor(message)
        elif isinstance(message, PieceMessage):
            incoming.take_piece(message, tensors)
    assert incoming.whole
    return incoming


@pytest.mark.parametrize("wire", ["exact", "float16", "bfloat16", "int8"])
def test_what_comes_in_parts_is_the_same_bits_as_what_comes_whole(wire: Wire) -> None:
    packing = packing_of(wire)
    said = said_of(packing)
    division = Division(packing, (32, 48, 100))
    parts = division.split(said, 9)
    came = [taken(division.packing_of(part), one) for part, one in enumerate(parts)]
    assert [(one.epoch, one.part, one.samples, one.step) for one in came] == [(9, at, 4, 5) for at in range(3)]
    assert came[0].micro_batches == ((0, 2), (7, 1))
    whole = division.whole([one.vectors for one in came])
    for name, vector in taken(packing, said).vectors.items():
        assert torch.equal(whole[name], vector)
    again = division.joined(parts)
    assert [message for message, _ in again] == [message for message, _ in said]
    for (_, one), (_, other) in zip(again, said, strict=True):
        assert all(torch.equal(a, b) for a, b in zip(one, other, strict=True))


def test_a_part_is_a_view_of_the_whole_and_the_first_has_the_statistics() -> None:
    division = Division(packing_of(), (16, 100))
    whole = {"gradients": torch.arange(100.0), "statistics": torch.ones(3)}
    assert set(division.vectors_of(0, whole)) == {"gradients", "statistics"}
    part = division.vectors_of(1, whole)
    assert list(part) == ["gradients"]
    part["gradients"].zero_()
    assert whole["gradients"].sum() == sum(range(16))


@pytest.mark.parametrize("bounds", [(), (100, 100), (16, 99), (20, 100), (0, 100), (48, 32, 100), (32, 1000)])
def test_ranges_that_divide_nothing_are_refused(bounds: tuple[int, ...]) -> None:
    with pytest.raises(InvalidInput, match="divide no gradient"):
        Division(packing_of(), bounds)


def test_low_rank_is_not_divided() -> None:
    form = Form("gradients", torch.float32, 10_000)
    packing = Packing([form, Form("statistics", torch.float32, 0)], LowRank([(100, 100)], 2))
    assert division_by(packing, [1.0, 1.0]) is None
    with pytest.raises(InvalidInput):
        Division(packing, (16, packing.sent[0].elements))


@pytest.mark.parametrize(
    ("shares", "bounds", "named"),
    [
        ([1.0, 1.0], (48, 100), [1]),  # 7 pieces of 16, the last one short: 3.5 of them is rounded to an even 4 or 3
        ([1.0, 3.0], (32, 100), [1]),
        ([1.0, 0.0, 1.0], (48, 100), [2]),
        ([0.0, 1.0], (16, 100), [1]),
        ([1.0, 1.0, 1.0], (32, 80, 100), [1, 2]),
    ],
)
def test_shares_are_rounded_to_pieces_and_the_serving_machine_has_one_at_least(
    shares: list[float], bounds: tuple[int, ...], named: list[int]
) -> None:
    found = division_by(packing_of(), shares)
    assert found is not None
    assert abs(found[0].bounds[0] - bounds[0]) <= SIZE
    assert found[0].bounds[-1] == 100
    assert found[1] == named


def test_who_has_all_or_too_little_to_divide_divides_nothing() -> None:
    assert division_by(packing_of(), [1.0, 0.0]) is None
    assert division_by(packing_of(), [1.0, 0.01]) is None
    assert division_by(packing_of(elements=SIZE), [1.0, 1.0]) is None
    assert division_by(packing_of(elements=0), [1.0, 1.0]) is None


def test_a_mean_of_a_part_is_sent_under_its_number() -> None:
    part = Division(packing_of(), (32, 100)).packing_of(1)
    said = in_part(list(Feedback(part).pieces("average", 3, 8, [torch.ones(68)])), 4, 1)
    began = said[0][0]
    assert isinstance(began, TransferMessage)
    assert (began.what, began.step, began.samples, began.epoch, began.part) == ("average", 3, 8, 4, 1)
    assert torch.equal(taken(part, said).vectors["gradients"], torch.ones(68))
