"""The folder that a run writes to: a new one for a new run, the latest one for a resumed run.

In: the user's --out and --resume. Out: the paths of a run's files, and refusals to overwrite anything.

RUN/plan.yaml  metrics.jsonl  checkpoints/  weights.safetensors  loss.png  summary.json  trace.json  logs/
"""

import shutil
import time
from dataclasses import dataclass
from pathlib import Path

from ravnest.checkpoints.checkpoint import LATEST
from ravnest.errors import InvalidInput

RUNS = Path("runs")
_BEGINNINGS = {"plan.yaml", "metrics.jsonl", "logs", "checkpoints"}
_LOGS = "logs/*.s[0-9]*.log"


@dataclass(frozen=True)
class RunFolder:
    """The paths of the files of one run."""

    path: Path

    @property
    def plan(self) -> Path:
        return self.path / "plan.yaml"

    @property
    def has_checkpoint(self) -> bool:
        return (self.checkpoints / LATEST).is_file()

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
    def trace(self) -> Path:
        return self.path / "trace.json"

    @property
    def summary(self) -> Path:
        return self.path / "summary.json"

    def begin(self, plan_path: Path) -> None:
        """Make the folder and copy the plan into it. What a run without a checkpoint left in it is removed.

        Raises InvalidInput where something cannot be written.
        """
        try:
            self.path.mkdir(parents=True, exist_ok=True)
            if not self.has_checkpoint:
                for left in [self.metrics, *self.path.glob(_LOGS)]:
                    left.unlink(missing_ok=True)
            if not (self.plan.exists() and self.plan.samefile(plan_path)):
                shutil.copyfile(plan_path, self.plan)
        except OSError as error:
            reason = error.strerror or str(error)
            raise InvalidInput(f"cannot be written ({reason}); name another with --out", path=str(self.path)) from None


def choose_folder(out_dir: Path | None, *, resume: bool) -> RunFolder:
    """The folder to write to; nothing is changed. `out_dir`: what the user named; None: a new, or the newest, one.

    Raises InvalidInput where a run would overwrite something, or there is nothing to resume.
    """
    if resume:
        folder = RunFolder(out_dir if out_dir is not None else _newest_run())
        if not folder.has_checkpoint:
            raise InvalidInput(
                "no checkpoint here to resume from: name the run's folder with --out, or start without --resume",
                path=str(folder.path),
            )
        return folder
    folder = RunFolder(out_dir if out_dir is not None else RUNS / time.strftime("%Y%m%d-%H%M%S"))
    if folder.path.exists() and not folder.path.is_dir():
        raise InvalidInput("is a file; --out must name a folder", path=str(folder.path))
    if folder.has_checkpoint:
        raise InvalidInput(
            "holds a run already: add --resume to go on with it, or name another folder", path=str(folder.path)
        )
    if folder.path.is_dir():
        _refuse_foreign(folder.path)
    return folder


def _refuse_foreign(path: Path) -> None:
    """Refuse a folder that holds more than a run without a checkpoint leaves: anything else is somebody's."""
    logs = {*path.glob(_LOGS)}
    foreign = [one for one in path.iterdir() if one.name not in _BEGINNINGS]
    foreign += [one for one in (path / "logs").glob("*") if one not in logs]
    if foreign:
        named = min(foreign).relative_to(path)
        raise InvalidInput(f"holds {str(named)!r}, which is no run's: name an empty folder", path=str(path))


def _newest_run() -> Path:
    runs = sorted(path for path in RUNS.glob("*") if RunFolder(path).has_checkpoint)
    if not runs:
        raise InvalidInput("no run with a checkpoint to resume; name its folder with --out", path=str(RUNS))
    return runs[-1]
