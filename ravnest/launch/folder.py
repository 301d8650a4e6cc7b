"""Where a run writes: a new folder for a new run, the latest one for a resumed run.

RUN/plan.yaml  metrics.jsonl  checkpoints/  weights.safetensors  loss.png  summary.json  logs/
"""

import shutil
import time
from dataclasses import dataclass
from pathlib import Path

from ravnest.errors import InvalidInput

RUNS = Path("runs")


@dataclass(frozen=True)
class RunFolder:
    """The paths of one run."""

    path: Path

    @property
    def plan(self) -> Path:
        return self.path / "plan.yaml"

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


def open_folder(plan_path: Path, out_dir: Path | None, *, resume: bool) -> RunFolder:
    """The folder to write to, made if need be. Raises InvalidInput where a run would overwrite another."""
    if resume:
        path = out_dir if out_dir is not None else _latest()
        if not (path / "checkpoints").is_dir():
            raise InvalidInput(
                "no checkpoint here to resume from: name the run's folder with --out, or start without --resume",
                path=str(path),
            )
        return RunFolder(path)
    path = out_dir if out_dir is not None else RUNS / time.strftime("%Y%m%d-%H%M%S")
    if path.exists() and not path.is_dir():
        raise InvalidInput("is a file; --out must name a folder", path=str(path))
    if path.is_dir() and any(path.iterdir()):
        raise InvalidInput("is not empty: add --resume to go on with the run in it, or name another", path=str(path))
    path.mkdir(parents=True, exist_ok=True)
    folder = RunFolder(path)
    shutil.copyfile(plan_path, folder.plan)
    return folder


def _latest() -> Path:
    runs = sorted(path for path in RUNS.glob("*") if (path / "checkpoints").is_dir())
    if not runs:
        raise InvalidInput("no run with a checkpoint to resume; name its folder with --out", path=str(RUNS))
    return runs[-1]
