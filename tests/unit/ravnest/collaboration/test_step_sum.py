import pytest
import torch

from ravnest.collaboration.step_sum import StepSum
from ravnest.collaboration.transfers import Form


def test_the_mean_counts_samples_and_the_next_sum_begins_from_zero() -> None:
    total = StepSum([Form("g", torch.float32, 3)])
    total.add({"g": torch.tensor([2.0, 4.0, 6.0])}, 2)
    total.add({"g": torch.tensor([6.0, 4.0, 2.0])}, 6)
    _, mean = total.finish(0)
    assert mean["g"].tolist() == [1.0, 1.0, 1.0]
    total.add({"g": torch.tensor([1.0, 0.0, 0.0])}, 1)
    assert total.finish(1)[1]["g"].tolist() == [1.0, 0.0, 0.0]


def test_what_a_shorter_form_loses_is_added_to_later_means() -> None:
    total = StepSum([Form("g", torch.float32, 256, "int8")])
    given = torch.linspace(-1, 1, 256) ** 3
    sent = torch.zeros(256)
    for step in range(50):
        total.add({"g": given}, 1)
        sent += total.finish(step)[1]["g"]
    assert float((sent / 50 - given).abs().max()) < 1e-3  # one mean alone is off by up to 4e-3
    total.add({"g": given}, 1)
    assert float((total.finish(50)[1]["g"] - given).abs().max()) == pytest.approx(4e-3, rel=1.0)
