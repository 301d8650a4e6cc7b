"""What the planner is told of a job, before it plans."""

import math
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from cluster_planner import Fleet, ModelCosts, Node, NoFeasiblePlan, Plan, validate
from ravnest.cli.views.plan_explained import of_staleness
from ravnest.errors import InvalidInput
from ravnest.job.config import StopConfig, load_job
from ravnest.planning import prepare_plan as planning
from ravnest.planning.searching_on import Budget
from ravnest.planning.workload import check_job_of_plan
from tests.support.local import job_in

JOB = Path(__file__).parents[3] / "support" / "jobs" / "job.yaml"


class Asked(Exception):
    """Raised in the planner's place."""


@pytest.mark.parametrize(
    ("stop", "samples", "seconds"),
    [
        (StopConfig(samples=960), 960.0, math.inf),
        (StopConfig(minutes=2), math.inf, 120.0),
        (StopConfig(epochs=2), "twice", math.inf),
    ],
)
def test_the_planner_hears_how_long_training_is(
    monkeypatch: pytest.MonkeyPatch, stop: StopConfig, samples: float | str, seconds: float
) -> None:
    told: dict[str, object] = {}
    held: list[int] = []
    total = planning.total_samples

    def asked(*_: object, **options: object) -> object:
        told.update(options)
        raise Asked

    def sized(config: object, size: int, file: object) -> object:
        held.append(size)
        return total(config, size, file)  # type: ignore[arg-type]

    monkeypatch.setattr(planning, "make_plan", asked)
    monkeypatch.setattr(planning, "total_samples", sized)
    fleet = Fleet((Node(name="a", flops_per_s=1e9, memory_bytes=10**9, up_bytes_per_s=1e6, down_bytes_per_s=1e6),))
    job = load_job(JOB).model_copy(update={"stop": stop})
    with pytest.raises(Asked):
        planning.prepare_plan(fleet, job, fleet_path="nodes.yaml", step=lambda words: None)
    assert told["trained_samples"] == (2.0 * held[0] if samples == "twice" else samples)
    assert told["trained_s"] == seconds


CODE = """
from types import SimpleNamespace
import torch
from torch import nn
from torch.utils.data import TensorDataset

class Whole(nn.Module):
    def __init__(self):
        super().__init__()
        self.a, self.b = nn.Linear(4, 4), nn.Linear(4, 4)
        self.register_buffer("state", torch.zeros(4))
    def forward(self, x):
        y = self.b(self.a(x + self.state))
        self.state.clamp_(max=0.5)
        return y + self.state

def loading():
    model = Whole()
    model.load_state_dict(model.state_dict())
    model.rates = [rate.item() for rate in torch.linspace(0, 1, 2)]
    return model

def flat():
    part = TensorDataset(torch.randn(24, 4), torch.zeros(24, dtype=torch.long))
    return SimpleNamespace(train=part, held_out=part)
"""


def planned(
    folder: Path,
    factory: str,
    memory_bytes: int,
    warn: list[str],
    so_far: Callable[[Plan, str], None] = lambda plan, lacks: None,
    budget: Budget | None = None,
    **changes: object,
) -> planning.ExplainedPlan:
    (folder / "code_that_is_whole.py").write_text(CODE)
    job = job_in(
        folder,
        model={"factory": f"code_that_is_whole:{factory}"},
        data={"factory": "code_that_is_whole:flat"},
        micro_batch=4,
        optimizer={"name": "sgd", "lr": 0.1},
        stop={"samples": 96},
        **changes,
    )
    node = Node(name="a", flops_per_s=1e9, memory_bytes=memory_bytes, up_bytes_per_s=1e6, down_bytes_per_s=1e6)
    return planning.prepare_plan(
        Fleet((node,)), job, budget=budget, step=lambda words: None, warn=warn.append, so_far=so_far
    )


@pytest.fixture
def _own_modules(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delitem(sys.modules, "code_that_is_whole", raising=False)
    monkeypatch.setattr(sys, "path", list(sys.path))


@pytest.mark.usefixtures("_own_modules")
def test_units_cost_what_they_move_where_the_fleet_s_figure_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    heard: list[ModelCosts] = []

    def asked(fleet: Fleet, costs: ModelCosts, *_: object, **options: object) -> object:
        heard.append(costs)
        raise Asked

    monkeypatch.setattr(planning, "make_plan", asked)
    node = Node(name="a", flops_per_s=1e9, memory_bytes=10**9, up_bytes_per_s=1e6, down_bytes_per_s=1e6)
    for traffic in (0.0, 25.0):
        with pytest.raises(Asked):
            planning.prepare_plan(
                Fleet((node,), flops_per_byte=traffic), load_job(JOB), check="none", step=lambda words: None
            )
    plain, weighted = heard
    assert weighted == plain.with_traffic(25.0)
    assert all(unit.moved_bytes > 0 for unit in plain.units)


def test_more_stages_than_nodes_are_refused_before_anything_is_loaded() -> None:
    steps: list[str] = []
    nodes = tuple(
        Node(name=name, flops_per_s=1e9, memory_bytes=10**9, up_bytes_per_s=1e6, down_bytes_per_s=1e6) for name in "ab"
    )
    with pytest.raises(InvalidInput, match="must be at most the number of nodes, 2, not 3") as caught:
        planning.prepare_plan(Fleet(nodes), load_job(JOB), min_stages=3, step=steps.append)
    assert (caught.value.key, steps) == ("min_stages", [])


def test_a_model_in_one_piece_that_does_not_fit_is_told_what_keeps_it_so(tmp_path: Path) -> None:
    said = r"a single unit.* because aten\.clamp_\.default in .*code_that_is_whole\.py:14"
    with pytest.raises(NoFeasiblePlan, match=said):
        planned(tmp_path, "Whole", 300 << 20, [])


@pytest.mark.usefixtures("_own_modules")
def test_what_a_model_that_needs_or_loads_values_costs_is_said(tmp_path: Path) -> None:
    said: list[str] = []
    plan = planned(tmp_path, "loading", 1 << 30, said).plan
    assert len(plan.clusters) == 1
    assert "model.factory loads weights (Whole.load_state_dict)" in said[0]
    assert "initial_weights" in said[0]
    assert "captured with its weights in memory" in said[1]


@pytest.mark.usefixtures("_own_modules")
def test_a_staleness_that_is_left_to_the_planner_is_a_number_in_the_plan(tmp_path: Path) -> None:
    explained = planned(tmp_path, "Whole", 1 << 30, [], max_staleness="auto")
    plan = explained.plan
    assert plan.workload.max_staleness == plan.job["max_staleness"] == 1
    check_job_of_plan(plan, "plan.yaml")
    assert of_staleness(explained.search) == f"\nmax_staleness: {explained.search[-1].words}."
    assert explained.search[-1].words.startswith("1 is chosen")


@pytest.mark.usefixtures("_own_modules")
def test_each_plan_is_told_with_what_it_lacks_as_soon_as_it_is_there(tmp_path: Path) -> None:
    told: list[tuple[Plan, str]] = []
    final = planned(tmp_path, "Whole", 1 << 30, [], lambda plan, lacks: told.append((plan, lacks))).plan
    assert [lacks for _, lacks in told] == [planning.UNTRIED, planning.UNADVISED]
    for plan, _ in told:
        validate(plan)
        assert (plan.clusters, plan.data) == (final.clusters, final.data)


@pytest.mark.usefixtures("_own_modules")
def test_where_the_user_ends_a_search_with_a_budget_nothing_more_is_planned(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(planning, "with_advice_planned", lambda *_, **__: pytest.fail("advice was planned"))
    said: list[str] = []
    ended = Budget(60.0, lambda plan: None, lambda: True)
    assert planned(tmp_path, "Whole", 1 << 30, said, budget=ended).plan
    assert said[-1] == f"searching on was interrupted: {planning.UNADVISED}"


@pytest.mark.usefixtures("_own_modules")
@pytest.mark.parametrize("with_budget", [True, False])
def test_a_search_with_a_budget_tries_each_unit_before_it_goes_on(
    with_budget: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The better plan has other cuts, which were tried in a fresh process after Ctrl-C, for seconds."""
    heard: list[object] = []
    monkeypatch.setattr(planning, "try_plan", lambda *_, short, **__: heard.append(short))
    monkeypatch.setattr(planning, "searched_on", lambda plan, *_, **__: heard.append("searched on") or replace(plan))
    budget = Budget(60.0, lambda plan: None, lambda: True) if with_budget else None
    planned(tmp_path, "Whole", 1 << 30, [], budget=budget)
    assert heard == ([True, "searched on"] if with_budget else [False])


@pytest.mark.usefixtures("_own_modules")
def test_where_some_unit_cannot_be_a_stage_the_plan_s_own_stages_are_tried(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    heard: list[bool] = []

    def tried(*_: object, short: bool, **__: object) -> None:
        heard.append(short)
        if short:
            raise InvalidInput("no such stage")

    monkeypatch.setattr(planning, "try_plan", tried)
    assert planned(tmp_path, "Whole", 1 << 30, [], budget=Budget(60.0, lambda plan: None, lambda: True)).plan
    assert heard == [True, False]
