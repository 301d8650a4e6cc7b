"""Several runs beside each other: what of their settings differs, and their losses at equal numbers of samples.

In: the folders of runs, which are only read. Out: a `Comparison`.
"""

import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any, cast

from cluster_planner import Plan, load_plan
from ravnest.checkpoints.run_folder import RunFolder
from ravnest.driver.observe.metrics_file import curve_records
from ravnest.errors import InvalidInput
from ravnest.job.config import job_from_mapping
from ravnest.pictures import Curve, that_counts
from ravnest.results.run_state import State, find_run, run_state

POINTS = 8
"""At how many numbers of samples losses are compared."""


@dataclass(frozen=True)
class ComparedRun:
    """One run. What is not known is None."""

    path: Path
    state: State
    samples: int
    seconds: float
    """Of training, over all its sessions."""
    trained: Curve
    """The mean training loss of the clusters, second by second."""
    held_out: Curve

    @property
    def samples_per_s(self) -> float | None:
        """The mean rate of all its training."""
        return self.samples / self.seconds if self.seconds > 0 else None

    @property
    def best_held_out(self) -> float | None:
        """The lowest held-out loss."""
        return min((loss for _, loss in self.held_out), default=None)


@dataclass(frozen=True)
class Comparison:
    """Several runs, and by key each setting that differs, in the order of the runs. None: the run has no such key."""

    runs: tuple[ComparedRun, ...]
    settings: Mapping[str, tuple[object, ...]]
    losses: tuple[tuple[int, tuple[float | None, ...]], ...]
    """(samples, of each run the mean training loss since the row before)."""


def compare_runs(paths: Sequence[Path]) -> Comparison:
    """Return what these runs have in common and what not. A path may be a folder, or a run's name in runs/.

    Raises InvalidInput for fewer than two runs, a folder without a run, and files that cannot be read.
    """
    if len(paths) < 2:
        raise InvalidInput("two runs at least are compared", key="RUN")
    paths = [find_run(path) for path in paths]
    runs = tuple(_read(path) for path in paths)
    settings = [dict(settings_of(load_plan(RunFolder(path).plan, has_run=True))) for path in paths]
    most = max(run.samples for run in runs)
    edges = [most * step // POINTS for step in range(POINTS + 1)]
    spans = list(pairwise(edges)) if most >= POINTS else []
    rows = tuple((end, tuple(_mean(run.trained, begin, end) for run in runs)) for begin, end in spans)
    return Comparison(runs, differing(settings), rows)


def differing(settings: Sequence[Mapping[str, object]]) -> dict[str, tuple[object, ...]]:
    """Return by key the values that are not all equal; None for one that is not there, or is empty."""
    keys = dict.fromkeys(key for each in settings for key in each)
    values = {key: tuple(None if each.get(key) in _EMPTY else each[key] for each in settings) for key in keys}
    return {key: found for key, found in values.items() if any(one != found[0] for one in found)}


_EMPTY = (None, "", "{}", "[]")
"""What a setting is that says nothing, as one that a run does not have."""


def settings_of(plan: Plan) -> Iterator[tuple[str, object]]:
    """Yields (key, value): the job's keys, joined by dots, then the model, the data and who runs what."""
    yield from _flat(_whole(plan.job), "job")
    yield "model", plan.costs.fingerprint[:8]
    yield "data", plan.data
    for cluster in plan.clusters:
        yield f"clusters.{cluster.name}", ", ".join(stage.node for stage in cluster.stages)
        yield f"clusters.{cluster.name}.cuts", ", ".join(str(stage.units[1]) for stage in cluster.stages[:-1])
        yield f"clusters.{cluster.name}.window", cluster.window


def _whole(job: Mapping[str, object]) -> Mapping[str, object]:
    """The job with the defaults of keys that it does not have, as one of an older version."""
    try:
        return job_from_mapping(job).model_dump(mode="json")
    except InvalidInput:  # of a version that had other keys
        return job


def _flat(value: object, key: str) -> Iterator[tuple[str, object]]:
    if isinstance(value, Mapping) and value:
        for name, item in value.items():
            yield from _flat(item, f"{key}.{name}")
    else:
        yield key, json.dumps(value) if isinstance(value, Mapping | list | tuple) else value


def _read(path: Path) -> ComparedRun:
    state = run_state(path).state
    metrics = RunFolder(path).metrics
    samples, whole_s, session_s = 0, 0.0, 0.0  # each session counts its time from its own start
    trained: list[tuple[int, float]] = []
    held_out: list[tuple[int, float]] = []
    for record in cast("Iterable[dict[str, Any]]", curve_records(metrics) if metrics.exists() else ()):
        if record["kind"] in ("progress", "past"):
            if record["at_s"] < session_s:
                whole_s += session_s
            samples, session_s = record["samples"], record["at_s"]
            if losses := _losses(record):
                trained.append((samples, sum(losses) / len(losses)))
        elif record["kind"] == "evaluated" and record["loss"] is not None:
            held_out.append((record["samples"], record["loss"]))
    return ComparedRun(path, state, samples, whole_s + session_s, that_counts(trained), that_counts(held_out))


def _losses(record: Mapping[str, Any]) -> list[float]:
    """Of the clusters, in a record of progress or of the past."""
    if record["kind"] == "past":
        return list(record["losses"].values())
    return [cluster["loss"] for cluster in record["clusters"] if cluster["loss"] is not None]


def _mean(curve: Curve, begin: int, end: int) -> float | None:
    losses = [loss for samples, loss in curve if begin < samples <= end]
    return sum(losses) / len(losses) if losses else None
