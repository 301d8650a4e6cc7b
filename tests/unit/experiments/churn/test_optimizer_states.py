from pathlib import Path

import pytest
import torch

from experiments.churn.optimizer_states import FRESH, HOW, Fleet, Lost, mean_of, spans, state_of
from experiments.pipeline.tasks import Characters


@pytest.fixture
def task(tmp_path: Path) -> Characters:
    text = tmp_path / "text"
    text.write_text("to be, or not to be: that is the question. " * 40)
    return Characters(text, layers=2, width=16, context=8, batch=2)


def _trained(task: Characters, lost: Lost | None) -> list[float]:
    fleet = Fleet(task, 0)
    for number in range(3):
        fleet.round(lost if number == 1 else None)
    return torch.cat([each.detach().flatten() for each in fleet.anchor.parameters()]).tolist()


def test_a_loss_changes_what_is_learned_and_each_state_does_otherwise(task: Characters) -> None:
    found = [_trained(task, None), *(_trained(task, Lost(1, 2, how)) for how in HOW)]
    assert _trained(task, Lost(1, 2, FRESH)) == found[1 + HOW.index(FRESH)]
    assert len({tuple(each) for each in found}) == len(found)


def test_stages_hold_about_as_many_numbers_each() -> None:
    assert spans([1] * 8) == [(0, 2), (2, 4), (4, 6), (6, 8)]
    assert spans([4, 1, 1, 1, 1, 4, 4]) == [(0, 1), (1, 5), (5, 6), (6, 7)]


def test_the_mean_of_states_is_taken_number_by_number() -> None:
    def state(value: float) -> list[dict[str, torch.Tensor]]:
        parameter = torch.nn.Parameter(torch.zeros(2))
        optimizer = torch.optim.AdamW([parameter], lr=1e-3)
        parameter.grad = torch.full((2,), value)
        optimizer.step()
        return state_of(optimizer)

    (found,) = mean_of([state(1.0), state(3.0)])
    assert found["step"].item() == 1
    assert found["exp_avg"].tolist() == pytest.approx([0.2, 0.2])
