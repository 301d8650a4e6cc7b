import random

import pytest
import torch

from ravnest.collaboration.low_rank import LowRank
from ravnest.collaboration.messages import TransferMessage
from ravnest.collaboration.packing import Feedback, Packing
from ravnest.collaboration.step_sum import StepSum
from ravnest.collaboration.transfers import Form, Said
from ravnest.errors import InvalidInput
from ring_allreduce.ring import Wire

SHAPES = [(24, 16), (16,)]
ELEMENTS = 24 * 16 + 16


def packing_of(wire: Wire, rank: int | None) -> Packing:
    forms = (Form("g", torch.float32, ELEMENTS, wire), Form("s", torch.float32, 3))
    return Packing(forms, None if rank is None else LowRank(SHAPES, rank))


def received(packing: Packing, said: list[Said], samples: float) -> dict[str, torch.Tensor]:
    """What the other side of a line makes of it."""
    began = said[0][0]
    assert isinstance(began, TransferMessage)
    incoming = packing.incoming(began)
    for message, tensors in said[1:]:
        (incoming.take_piece(message, tensors) if tensors else incoming.take_tensor(message))  # type: ignore[arg-type]
    assert incoming.whole
    return packing.whole(incoming.vectors, samples)


@pytest.mark.parametrize("rank", [None, 1, 4])
@pytest.mark.parametrize("wire", ["exact", "bfloat16", "float16", "int8"])
def test_all_that_was_given_is_what_was_sent_and_what_is_still_held_whoever_comes_and_goes(
    wire: Wire, rank: int | None
) -> None:
    """Exact bookkeeping, in float32, over volunteers that join and leave, with other samples in each contribution."""
    packing, choose, draw = packing_of(wire, rank), random.Random(0), torch.Generator().manual_seed(0)
    given, sent, taken_along = (torch.zeros(ELEMENTS, dtype=torch.float64) for _ in range(3))
    senders, size = [Feedback(packing)], 0.0
    for step in range(60):
        if choose.random() < 0.3:
            senders.append(Feedback(packing))
            assert all(not lost.any() for lost in senders[-1].lost.values()), "who joins begins with nothing"
        if len(senders) > 1 and choose.random() < 0.25:
            gone = senders.pop(choose.randrange(len(senders)))
            taken_along += gone.lost.get("g", torch.zeros(1))
        for sender in senders:
            samples = choose.randint(1, 64)
            vector = samples * (0.1 + torch.randn(ELEMENTS, generator=draw))
            statistics = torch.arange(3.0)
            said = list(sender.pieces("contribution", step, samples, [vector, statistics], float(samples)))
            came = received(packing, said, float(samples))
            assert torch.equal(came["g"], packing.decoded(said, float(samples))["g"])
            assert torch.equal(came["s"], statistics)
            given += vector
            sent += came["g"]
            size = max(size, float(vector.abs().max()))
    held = sum((sender.lost.get("g", torch.zeros(1)).to(torch.float64) for sender in senders), torch.zeros(1))
    assert float((given - sent - held - taken_along).abs().max()) < 1e-5 * size * 60


@pytest.mark.parametrize(("rank", "least"), [(1, 5.0), (4, 1.5)])
def test_a_gradient_that_is_the_same_again_and_again_arrives_whole_by_and_by(rank: int, least: float) -> None:
    packing = packing_of("float16", rank)
    assert packing.summed[0].elements / packing.sent[0].elements > least
    sender, gradient = Feedback(packing), torch.randn(ELEMENTS, generator=torch.Generator().manual_seed(1))
    sent, errors = torch.zeros(ELEMENTS), []
    for step in range(1, 101):
        said = list(sender.pieces("contribution", step, 8, [8.0 * gradient, torch.zeros(3)], 8.0))
        sent += packing.decoded(said, 8.0)["g"] / 8.0
        errors.append(float((sent / step - gradient).norm() / gradient.norm()))
    assert errors[-1] < 0.25 * errors[0]


def test_a_mean_of_low_rank_in_float16_has_no_infinite_numbers() -> None:
    packing = packing_of("float16", 2)
    said = list(Feedback(packing).pieces("average", 0, 8, [torch.full((ELEMENTS,), 1e6), torch.zeros(3)]))
    assert bool(torch.isfinite(received(packing, said, 1.0)["g"]).all())


def test_a_contribution_whose_thin_matrices_make_numbers_beyond_all_bounds_is_refused() -> None:
    packing = packing_of("exact", 2)
    vectors = {"g": torch.full((packing.sent[0].elements,), 1e20), "s": torch.zeros(3)}
    with pytest.raises(InvalidInput, match="thin matrices"):
        packing.whole(vectors, 8.0)


def test_a_small_contribution_after_large_ones_does_not_look_like_a_lie() -> None:
    """What rank 1 has lost of large contributions is many small ones: all at once they are a mean like no other's."""
    packing, draw = packing_of("float16", 1), torch.Generator().manual_seed(0)
    sender = Feedback(packing)
    far: list[float] = []
    for samples in [64] * 40 + [4]:
        gradient = torch.randn(ELEMENTS, generator=draw)
        said = list(sender.pieces("contribution", 0, samples, [samples * gradient, torch.zeros(3)], float(samples)))
        far.append(float((packing.decoded(said, float(samples))["g"] / samples).norm()))
    assert float(sender.lost["g"].norm()) > 10 * 4 * ELEMENTS**0.5, "there is much to be fed back"
    assert far[-1] < 2 * max(far[:-1])


@pytest.mark.parametrize("wire", ["exact", "bfloat16", "float16"])
@pytest.mark.parametrize("value", [3e38, -1e30])
def test_no_mean_however_large_is_one_that_cannot_be_taken_nor_remembered_for_long(wire: Wire, value: float) -> None:
    packing = packing_of(wire, 2)
    total = StepSum(packing)
    for step in range(40):
        gradient = torch.full((ELEMENTS,), value) if step == 0 else torch.ones(ELEMENTS)
        total.add({"g": gradient, "s": torch.zeros(3)}, 1)
        said, mean = total.finish(step)
        assert torch.equal(received(packing, said, 1.0)["g"], mean["g"])
    assert float(mean["g"].abs().max()) < 2.0
