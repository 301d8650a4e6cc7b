import weakref

import pytest
import torch

from ravnest.collaboration import transfers
from ravnest.collaboration.packing import Packing
from ravnest.collaboration.shares import Division
from ravnest.collaboration.step_sum import MOST_HELD, PartSum, StepSum
from ravnest.collaboration.transfers import Form
from ravnest.errors import RunFailed
from ring_allreduce.ring import Wire


def test_the_mean_counts_samples_and_the_next_sum_begins_from_zero() -> None:
    total = StepSum(Packing([Form("g", torch.float32, 3)]))
    total.add({"g": torch.tensor([2.0, 4.0, 6.0])}, 2)
    total.add({"g": torch.tensor([6.0, 4.0, 2.0])}, 6)
    _, mean = total.finish(0)
    assert mean["g"].tolist() == [1.0, 1.0, 1.0]
    total.add({"g": torch.tensor([1.0, 0.0, 0.0])}, 1)
    assert total.finish(1)[1]["g"].tolist() == [1.0, 0.0, 0.0]


def test_there_is_no_mean_of_nothing() -> None:
    total = StepSum(Packing([Form("g", torch.float32, 3)]))
    with pytest.raises(RunFailed, match="nothing at step 7"):
        total.finish(7)


def test_what_a_shorter_form_loses_is_added_to_later_means() -> None:
    total = StepSum(Packing([Form("g", torch.float32, 256, "int8")]))
    given = torch.linspace(-1, 1, 256) ** 3
    sent = torch.zeros(256)
    for step in range(50):
        total.add({"g": given}, 1)
        sent += total.finish(step)[1]["g"]
    assert float((sent / 50 - given).abs().max()) < 1e-3  # one mean alone is off by up to 4e-3
    total.add({"g": given}, 1)
    assert float((total.finish(50)[1]["g"] - given).abs().max()) == pytest.approx(4e-3, rel=1.0)


def test_only_so_many_contributions_of_a_person_are_held_back() -> None:
    """While too few people are known: each takes the memory of a model."""
    total, given = StepSum(Packing([Form("g", torch.float32, 1024)])), list[weakref.ref[torch.Tensor]]()
    for _ in range(100):
        vector = torch.ones(1024)
        given.append(weakref.ref(vector))
        total.add({"g": vector}, 1, "one key")
        del vector
        assert sum(one() is not None for one in given) < MOST_HELD
    _, mean = total.finish(0)
    assert mean["g"].tolist() == [1.0] * 1024


def test_what_one_person_gives_adds_nothing_that_is_held_back_of_another() -> None:
    total = StepSum(Packing([Form("g", torch.float32, 64)]))
    total.add({"g": torch.full((64,), 1e6)}, 1, "liar")
    for _ in range(MOST_HELD):
        assert total.add({"g": torch.ones(64)}, 1, "a") == []
    assert total.add({"g": torch.ones(64)}, 1, "b") == ["liar"]


def noisy(samples: int, draw: torch.Generator) -> dict[str, torch.Tensor]:
    """The sum of so many samples whose mean is 1, each with noise of 3."""
    return {"g": samples * (1.0 + 3.0 * torch.randn(64, generator=draw) / samples**0.5)}


def test_contributions_within_what_is_allowed_are_added_exactly_whatever_comes_beside_them() -> None:
    bounded, plain = (StepSum(Packing([Form("g", torch.float32, 64)])) for _ in range(2))
    draw = torch.Generator().manual_seed(0)
    for step in range(20):
        for person, samples in [("a", 8), ("b", 64), ("c", 16), ("d", 500)]:
            vectors = noisy(samples, draw)
            assert bounded.add(vectors, samples, person) == []
            plain.add(vectors, samples)
        assert torch.equal(bounded.finish(step)[1]["g"], plain.finish(step)[1]["g"])


@pytest.mark.parametrize("lie", [1e30, -1e6, 3e38, 5e3])
@pytest.mark.parametrize("first", [True, False])
def test_a_lie_that_is_finite_moves_a_mean_no_further_than_is_allowed(lie: float, first: bool) -> None:
    total, draw = StepSum(Packing([Form("g", torch.float32, 64)])), torch.Generator().manual_seed(0)
    for step in range(3):
        honest = [("a", 32, noisy(32, draw)), ("b", 32, noisy(32, draw)), ("c", 32, noisy(32, draw))]
        lying = [("liar", 32, {"g": torch.full((64,), lie)})]
        scaled: set[str] = set()
        for person, samples, vectors in lying + honest if first else honest + lying:
            scaled.update(total.add(vectors, samples, person))
        assert "liar" in scaled
        assert scaled <= {"liar"}
        _, mean = total.finish(step)
        # Without it the mean is 1 with noise of 0.3; a quarter of the samples may deviate four times as others do.
        assert float((mean["g"] - 1.0).abs().max()) < 4.0


def test_a_mean_that_float16_cannot_hold_is_cut_and_not_fatal() -> None:
    total = StepSum(Packing([Form("g", torch.float32, 2, "float16")]))
    for step in range(3):
        total.add({"g": torch.tensor([1e20, -1e20])}, 1)
        assert float(total.finish(step)[1]["g"].abs().max()) < 65504
    total.add({"g": torch.tensor([1.0, 2.0])}, 1)
    assert total.finish(3)[1]["g"].tolist() == [1.0, 2.0]


@pytest.mark.parametrize(("wire", "lies"), [("exact", False), ("float16", False), ("int8", False), ("exact", True)])
def test_two_machines_make_the_mean_of_one_bit_for_bit_and_nearly_so_where_a_lie_is_scaled(
    wire: Wire, lies: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The length of a whole vector and that of its parts are rounded differently, and so is the scale of a lie."""
    monkeypatch.setattr(transfers, "PIECE_BYTES", 64)  # 16 elements
    packing = Packing([Form("g", torch.float32, 100, wire), Form("s", torch.float32, 3)])
    draw = torch.Generator().manual_seed(0)
    alone, serving = StepSum(packing), StepSum(packing)
    division = Division(packing, (48, 100))
    helper = PartSum(division.packing_of(1))
    scaled = 0
    for step in range(6):
        part, held = serving.divided(division), dict[int, tuple[torch.Tensor, int]]()
        for number in range(5):
            size = 100.0 if lies and number == 3 and step > 1 else 1.0
            vectors = {name: size * torch.randn(count, generator=draw) * 4 for name, count in (("g", 100), ("s", 3))}
            found = alone.add(vectors, 4, f"p{number}")
            held[number] = vectors["g"][48:], 4
            elsewhere = helper.deviation("g", held[number][0], 4)
            own = division.vectors_of(0, vectors)
            assert part.add(own, 4, f"p{number}", elsewhere=elsewhere, numbered=(0, number)) == found
            scaled += len(found)
            counted = part.take_scales()
            for _, at, scale in counted:
                helper.samples += 4
                helper.add_scaled("g", held.pop(at)[0], 4, scale)
        said, mean = alone.finish(step)
        (own_said, own_mean), (other_said, other_mean) = part.finish(step), helper.finish(step)
        serving.take_back(part)
        whole = division.whole([own_mean, other_mean])
        serving.begin_from(whole)
        if lies:
            assert all(torch.allclose(whole[name], one, rtol=1e-5, atol=1e-6) for name, one in mean.items())
            continue
        assert all(torch.equal(whole[name], one) for name, one in mean.items())
        for (_, one), (_, other) in zip(said, division.joined([own_said, other_said]), strict=True):
            assert all(torch.equal(a, b) for a, b in zip(one, other, strict=True))
    assert bool(scaled) == lies


def test_a_mean_that_was_never_taken_leaves_what_was_lost_as_it_was() -> None:
    total = StepSum(Packing([Form("g", torch.float32, 8, "float16")]))
    total.add({"g": torch.linspace(0, 1, 8)}, 3, "a")
    total.finish(0)
    before = total.lost_so_far()
    total.add({"g": torch.linspace(0, 2, 8)}, 3, "a")
    total.finish(1)
    assert not torch.equal(total.lost_so_far()["g"], before["g"])
    total.restore_lost(before)
    assert torch.equal(total.lost_so_far()["g"], before["g"])


def test_what_is_forgotten_is_in_no_mean() -> None:
    total = StepSum(Packing([Form("g", torch.float32, 2)]))
    total.add({"g": torch.tensor([8.0, 8.0])}, 1, "a")
    total.reset()
    total.add({"g": torch.tensor([1.0, 3.0])}, 1, "b")
    assert total.finish(0)[1]["g"].tolist() == [1.0, 3.0]
