"""Where a run writes: a new folder for a new run, the latest one for a resumed run.

RUN/plan.yaml  metrics.jsonl  checkpoints/  weights.safetensors  loss.png  summary.json  logs/
"""

import shutil
import time
from dataclasses import dataclass
from pathlib import Path

from ravnest.errors import InvalidInput
from ravnest.training.checkpoint import LATEST

RUNS = Path("runs")
_BEGINNINGS = {"plan.yaml", "metrics.jsonl", "logs", "checkpoints"}


@dataclass(frozen=True)
class RunFolder:
    """The paths of one run."""

    path: Path

    @property
    def plan(self) -> Path:
        return self.path / "plan.yaml"

    def advice(self, plan_path: Path) -> str:
        """How to go on after a failure."""
        if not _has_checkpoint(self.path):
            return "there was no checkpoint yet"
        return f"go on from the last checkpoint with: ravnest run {plan_path} --resume --out {self.path}"

    def keep_plan(self, plan_path: Path) -> None:
        """Copy the plan that runs into the folder, from which it may have been read."""
        if not (self.plan.exists() and self.plan.samefile(plan_path)):
            shutil.copyfile(plan_path, self.plan)

    @property
    def metrics(self) -> Path:
        return self.path / "metrics.jsonl"

    @property
    def checkpoints(self) -> Path:
        return self.path / "checkpoints"

    @property
    def weights(self) -> Path:
        return self.path / "weights.safetensors"

    @property
    def loss_curve(self) -> Path:
        return self.path / "loss.png"

    @property
    def summary(self) -> Path:
        return self.path / "summary.json"


def open_folder(out_dir: Path | None, *, resume: bool) -> RunFolder:
    """The folder to write to, made if need be. Raises InvalidInput where a run would overwrite something."""
    if resume:
        path = out_dir if out_dir is not None else _newest_run()
        if not _has_checkpoint(path):
            raise InvalidInput(
                "no checkpoint here to resume from: name the run's folder with --out, or start without --resume",
                path=str(path),
            )
        return RunFolder(path)
    path = out_dir if out_dir is not None else RUNS / time.strftime("%Y%m%d-%H%M%S")
    if path.exists() and not path.is_dir():
        raise InvalidInput("is a file; --out must name a folder", path=str(path))
    if _has_checkpoint(path):
        raise InvalidInput("holds a run already: add --resume to go on with it, or name another folder", path=str(path))
    try:
        path.mkdir(parents=True, exist_ok=True)
        _clear_beginnings(path)
    except OSError as error:
        raise InvalidInput(f"cannot be written ({error.strerror}); name another with --out", path=str(path)) from None
    return RunFolder(path)


def _clear_beginnings(path: Path) -> None:
    """Remove what a run that never got as far as a checkpoint left here; anything else stays, and is refused."""
    others = sorted(entry.name for entry in path.iterdir() if entry.name not in _BEGINNINGS)
    if others:
        raise InvalidInput(f"holds {others[0]!r}, which is no run's: name an empty folder", path=str(path))
    (path / "metrics.jsonl").unlink(missing_ok=True)
    shutil.rmtree(path / "logs", ignore_errors=True)


def _has_checkpoint(path: Path) -> bool:
    return (path / "checkpoints" / LATEST).is_file()


def _newest_run() -> Path:
    runs = sorted(path for path in RUNS.glob("*") if _has_checkpoint(path))
    if not runs:
        raise InvalidInput("no run with a checkpoint to resume; name its folder with --out", path=str(RUNS))
    return runs[-1]
