"""Trackers for services that people keep their experiments in: Weights & Biases, and MLflow.

In: the arguments that job.yaml gives under `report_to`. Out: a callable that takes the records of metrics.jsonl and
logs the curves that TensorBoard shows (tensorboard.py). The service's own package is imported only when asked for, and
is not one of ravnest's dependencies. Where a run begins again or is resumed, a new tracker is made: give the service's
own arguments for going on with the same run.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from typing import Any

from ravnest.errors import InvalidInput
from ravnest.results.tensorboard import Scalar, Scalars

_MLFLOW_TAKES = 1000
"""Points in one request, at most."""


class _Curves:
    """Logs the points of each record."""

    def __init__(self, log: Callable[[list[Scalar]], object], end: Callable[[], object]) -> None:
        self._scalars, self._log, self._end = Scalars(), log, end

    def __call__(self, record: Mapping[str, Any]) -> None:
        if points := list(self._scalars.of(record)):
            self._log(points)

    def close(self) -> None:
        """The run is over."""
        self._end()


def wandb(**init: Any) -> _Curves:
    """Log to Weights & Biases; the arguments are those of `wandb.init`, such as `project` and `name`.

    Each curve is drawn over an axis of its own, `CURVE at`: the samples of the fleet. Raises InvalidInput where the
    package is not installed.
    """
    try:
        import wandb as package
    except ImportError:
        raise _missing("wandb") from None
    run = package.init(**init)
    known: set[str] = set()

    def log(points: list[Scalar]) -> None:
        for point in points:
            axis = f"{point.curve} at"
            if point.curve not in known:
                known.add(point.curve)
                run.define_metric(axis, hidden=True)
                run.define_metric(point.curve, step_metric=axis)
            run.log({point.curve: point.value, axis: point.step})

    return _Curves(log, run.finish)


def mlflow(
    tracking_uri: str | None = None,
    experiment: str = "ravnest",
    run_name: str | None = None,
    run_id: str | None = None,
) -> _Curves:
    """Log to MLflow, where `tracking_uri` or the environment says: a new run of the experiment, or that of `run_id`.

    Raises InvalidInput where the package is not installed.
    """
    try:
        from mlflow import MlflowClient
        from mlflow.entities import Metric
    except ImportError:
        raise _missing("mlflow") from None
    client = MlflowClient(tracking_uri)
    if run_id is None:
        found = client.get_experiment_by_name(experiment)
        number = client.create_experiment(experiment) if found is None else found.experiment_id
        run_id = client.create_run(number, run_name=run_name).info.run_id

    def log(points: list[Scalar]) -> None:
        """One request for all points of a record: a server may be far away."""
        now_ms = int(time.time() * 1000)
        for begin in range(0, len(points), _MLFLOW_TAKES):
            some = points[begin : begin + _MLFLOW_TAKES]
            client.log_batch(run_id, [Metric(each.curve, each.value, now_ms, each.step) for each in some])

    return _Curves(log, lambda: client.set_terminated(run_id))


def _missing(name: str) -> InvalidInput:
    return InvalidInput(f"needs the package {name}; install it with: pip install {name}", key="report_to")
