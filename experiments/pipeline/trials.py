"""Single trainings of the experiments on quality, and the book in which finished ones are kept.

A training takes minutes, a table of them hours: each result is written down as soon as it is there, and one that is in
the book is not made again. A line says which commit trained it. Delete the book after a change that trainings rest on.
"""

import json
import time
from collections import Counter
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from itertools import islice
from pathlib import Path

from experiments.harness.report import commit
from experiments.pipeline.delays import Delayed, by_depth, uniform
from experiments.pipeline.tasks import Task
from ravnest.training.optimizer import OptimizerConfig

_UNRECORDED = "a commit that was not recorded"


@dataclass(frozen=True)
class Trial:
    """One training, with `delay` at every parameter, or with `stages` stages that update at each micro-batch."""

    task: Task
    optimizer: Mapping[str, object]
    updates: int
    seed: int = 0
    delay: int = 0
    stages: int | None = None
    until: float | None = None
    """Stop once the held-out loss is this or less."""

    every: int = 100
    """Updates between looks at the held-out loss."""

    @property
    def key(self) -> str:
        """The same for the same training only."""
        rest = {name: value for name, value in vars(self).items() if name != "task"}
        return json.dumps({"task": self.task.name, **rest}, sort_keys=True)


@dataclass(frozen=True)
class Outcome:
    """What came of a trial. Losses are held-out nats; `loss` is infinite when training diverged."""

    loss: float
    accuracy: float
    updates: int
    curve: tuple[tuple[int, float], ...]
    seconds: float

    def reached(self, target: float) -> int | None:
        """The first look at which the loss was at most `target`, in updates."""
        return next((update for update, loss in self.curve if loss <= target), None)


class Book:
    """Finished trials, a line each in `path`."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._known: dict[str, Outcome] = {}
        self._commits: dict[str, str] = {}
        self._asked: dict[str, None] = {}
        self._commit = commit()
        if path.exists():
            for line in path.read_text(encoding="utf-8").splitlines():
                entry = json.loads(line)
                curve = tuple((update, loss) for update, loss in entry["outcome"].pop("curve"))
                self._known[entry["trial"]] = Outcome(curve=curve, **entry["outcome"])
                self._commits[entry["trial"]] = entry.get("commit", _UNRECORDED)

    def outcome(self, trial: Trial) -> Outcome:
        """From the book, or made now and written down."""
        self._asked[trial.key] = None
        if trial.key not in self._known:
            found = run(trial)
            self._known[trial.key], self._commits[trial.key] = found, self._commit
            self._path.parent.mkdir(parents=True, exist_ok=True)
            with self._path.open("a", encoding="utf-8") as book:
                book.write(json.dumps({"trial": trial.key, "commit": self._commit, "outcome": asdict(found)}) + "\n")
        return self._known[trial.key]

    @property
    def trained_by(self) -> str:
        """How many of the trials that were asked for were trained by which commit, in words."""
        counts = Counter(self._commits[key] for key in self._asked)
        return "Trained by " + ", ".join(f"{who} ({count} trials)" for who, count in counts.most_common()) + "."


def run(trial: Trial) -> Outcome:
    """Train, look at the held-out loss every so often, and judge at the end."""
    began_s = time.monotonic()
    task = trial.task
    model = task.model(trial.seed)
    delays = uniform(model, trial.delay) if trial.stages is None else by_depth(model, trial.stages)
    training = Delayed(model, delays, OptimizerConfig.model_validate(trial.optimizer), task.loss)
    curve: list[tuple[int, float]] = []
    done = 0
    for update, _ in training.train(islice(task.batches(trial.seed), trial.updates), trial.updates):
        done = update
        if update % trial.every == 0:
            curve.append((update, task.held_out_loss(model, whole=False)))
            if trial.until is not None and curve[-1][1] <= trial.until:
                break
    ended = done == trial.updates or (trial.until is not None and bool(curve) and curve[-1][1] <= trial.until)
    loss = task.held_out_loss(model, whole=True) if ended else float("inf")
    accuracy = task.accuracy(model) if ended else 0.0
    return Outcome(loss, accuracy, done, tuple(curve), round(time.monotonic() - began_s, 1))
