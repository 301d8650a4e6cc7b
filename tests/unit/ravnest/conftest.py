"""A small plan, and the events and the result of a small run, made by hand. No unit test starts a process."""

from collections.abc import Mapping
from pathlib import Path

import pytest

from cluster_planner import (
    Cluster,
    ClusterPrediction,
    Fleet,
    ModelCosts,
    Node,
    Plan,
    Prediction,
    Ring,
    Spare,
    Stage,
    StagePrediction,
    Unit,
    Workload,
    validate,
)
from ravnest.driver.observe.report import ClusterProgress, ProgressEvent, RunResult
from tests.support.results import finished_run


@pytest.fixture(autouse=True)
def _trial_in_this_process(monkeypatch: pytest.MonkeyPatch) -> None:
    """A plan's stages are tried by the same code as in a fresh process, which integration tests start."""
    from ravnest.planning import trial, trial_process

    def tried(folder: Path, deadline_s: float) -> Mapping[str, str | None]:
        assert deadline_s >= trial.LEAST_S
        return trial_process.main(folder)

    monkeypatch.setattr(trial, "in_fresh_process", tried)


def _node(name: str) -> Node:
    return Node(name=name, flops_per_s=1e10, memory_bytes=10**9, up_bytes_per_s=5e6, down_bytes_per_s=5e6)


def _unit(index: int) -> Unit:
    return Unit(
        name=f"block{index}",
        flops=1e6,
        parameter_bytes=1000,
        saved_bytes=10,
        boundary_bytes=100,
        boundary_gradient_bytes=100,
    )


def _cluster_prediction(*occupancies_s: float) -> ClusterPrediction:
    return ClusterPrediction(
        samples_per_s=4 / max(occupancies_s),
        bottleneck_s=max(occupancies_s),
        round_trip_s=0.25,
        bottleneck="compute of its slowest node",
        stages=tuple(
            StagePrediction(compute_s=one, up_s=one / 2, down_s=one / 4, occupancy_s=one, memory_bytes=250 * 10**6)
            for one in occupancies_s
        ),
    )


@pytest.fixture
def plan() -> Plan:
    made = Plan(
        clusters=(
            Cluster("c0", 5, (Stage("desk", (0, 2)), Stage("laptop", (2, 5)))),
            Cluster("c1", 3, (Stage("tower", (0, 3)), Stage("tablet", (3, 5)))),
        ),
        rings=(
            Ring((0, 2), (("c0", 0), ("c1", 0))),
            Ring((2, 3), (("c0", 1), ("c1", 0))),
            Ring((3, 5), (("c1", 1), ("c0", 1))),
        ),
        spares=(Spare("old-phone", "its 0.1 GB hold no unit"),),
        predicted=Prediction(
            samples_per_s=160.0,
            averaging_s=0.5,
            loaded_averaging_s=0.75,
            objective=152.0,
            efficiency=0.95,
            bottleneck="laptop computes",
            advice="a faster laptop would help most",
            clusters=(_cluster_prediction(0.02, 0.04), _cluster_prediction(0.0666, 0.03)),
        ),
        fleet=Fleet(tuple(_node(name) for name in ("desk", "laptop", "tower", "tablet", "old-phone"))),
        costs=ModelCosts(tuple(_unit(i) for i in range(5)), "fingerprint"),
        workload=Workload(
            micro_batch=4,
            update_every=4,
            max_staleness=1,
            average_every=512,
            max_lag=1,
            optimizer_state_bytes_per_parameter_byte=2.0,
            process_bytes=2 * 10**8,
        ),
        job={},
        job_file="job.yaml",
        seed=0,
    )
    validate(made)
    return made


@pytest.fixture
def progress() -> ProgressEvent:
    return ProgressEvent(
        elapsed_s=65.0,
        samples=4000,
        total_samples=20000,
        clusters=(
            ClusterProgress("c0", 2500, 50.0, 2.4567, 1, 78, 7),
            ClusterProgress("c1", 1500, 30.0, None, 0, 46, 6),
        ),
    )


@pytest.fixture
def result(tmp_path: Path) -> RunResult:
    return finished_run(tmp_path)
