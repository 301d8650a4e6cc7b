"""What the planner is told of a job, before it plans."""

import math
from pathlib import Path

import pytest

from cluster_planner import Fleet, Node
from ravnest.job.config import StopConfig, load_job
from ravnest.planning import prepare_plan as planning

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
