import pytest
import torch

from ravnest.collaboration.packing import Packing
from ravnest.collaboration.step_sum import StepSum
from ravnest.collaboration.transfers import Form


def test_the_mean_counts_samples_and_the_next_sum_begins_from_zero() -> None:
    total = StepSum(Packing([Form("g", torch.float32, 3)]))
    total.add({"g": torch.tensor([2.0, 4.0, 6.0])}, 2)
    total.add({"g": torch.tensor([6.0, 4.0, 2.0])}, 6)
    _, mean = total.finish(0)
    assert mean["g"].tolist() == [1.0, 1.0, 1.0]
    total.add({"g": torch.tensor([1.0, 0.0, 0.0])}, 1)
    assert total.finish(1)[1]["g"].tolist() == [1.0, 0.0, 0.0]


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
