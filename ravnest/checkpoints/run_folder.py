"""The folder that a run writes to: a new one for a new run, the latest one for a resumed run.

In: the user's --out and --resume. Out: the paths of a run's files, and refusals to overwrite anything. While a run
goes on, its process owns the folder (run_lock.py).

RUN/plan.yaml  metrics.jsonl  history.jsonl  checkpoints/  weights.safetensors or weights/  loss.png  summary.json
    trace.json  logs/  rehearsal (the mark of a rehearsal, which no resume takes unasked)
"""

import contextlib
import itertools
import os
import shutil
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

from ravnest.checkpoints.checkpoint import KEPT, LATEST
from ravnest.checkpoints.run_lock import LOCK, RunLock
from ravnest.checkpoints.sharded_weights import PART_BYTES
from ravnest.checkpoints.weight_files import IN_PARTS, INDEX
from ravnest.errors import InvalidInput
from ravnest.job_sections import PositiveFloat, PositiveInt, Section

RUNS = Path("runs")
REQUESTS = ".request-*.json"
"""The files with which other commands ask something of a run."""
_REQUESTED = ".request-*"
"""The same, and the files beside them."""
PAGE_TOKEN = ".page-token"
"""The file that holds what a browser must know to look at the run's page."""
_REHEARSAL = "rehearsal"
DRIVER = "driver.json"
"""What a driver writes down for one that takes the run over."""
DRIVER_PLAN = "driver.plan.yaml"
"""The plan as it is then."""
SHUT_OUT = "shut-out.json"
"""The nodes that were shut out of the run (ravnest/driver/shut_out.py)."""
COMERS = "came-*.plan.yaml"
"""The plan as it was last, of a run to which nodes have come (ravnest/driver/run_store.py)."""
_BEGINNINGS = {
    LOCK,
    PAGE_TOKEN,
    "plan.yaml",
    "metrics.jsonl",
    "history.jsonl",
    "logs",
    "checkpoints",
    _REHEARSAL,
    DRIVER,
    DRIVER_PLAN,
    SHUT_OUT,
}
_LOGS = "logs/*.s[0-9]*.log"


class CheckpointsConfig(Section):
    """The `checkpoints` section of the job: what a run leaves on the disk."""

    keep: PositiveInt = KEPT
    """How many of the last checkpoints are kept."""

    part_gb: PositiveFloat = PART_BYTES / 1e9
    """The most gigabytes of one file of the final weights. Beyond it they are written in parts, with an index."""


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
    def driver(self) -> Path:
        """What a driver writes down for one that takes the run over (ravnest/driver/run_store.py)."""
        return self.path / DRIVER

    @property
    def shut_out(self) -> Path:
        """The nodes that were shut out of the run."""
        return self.path / SHUT_OUT

    @property
    def can_resume(self) -> bool:
        """Whether there is a checkpoint to go on from, or a run that may be under way and can be taken over."""
        return self.has_checkpoint or self.driver.is_file()

    @property
    def metrics(self) -> Path:
        return self.path / "metrics.jsonl"

    @property
    def history(self) -> Path:
        """The thinned past of metrics.jsonl."""
        return self.path / "history.jsonl"

    @property
    def checkpoints(self) -> Path:
        return self.path / "checkpoints"

    @property
    def weights(self) -> Path:
        """The final weights, where they fit one file."""
        return self.path / "weights.safetensors"

    @property
    def weights_index(self) -> Path:
        """The index of the final weights, where they are in parts."""
        return self.path / IN_PARTS / INDEX

    @property
    def ray_log(self) -> Path:
        """What Ray has said, and the lines that its workers have printed."""
        return self.path / "logs" / "ray.log"

    @property
    def output(self) -> Path:
        """What a run without a terminal of its own has printed."""
        return self.path / "logs" / "output.log"

    @property
    def loss_curve(self) -> Path:
        return self.path / "loss.png"

    @property
    def trace(self) -> Path:
        return self.path / "trace.json"

    @property
    def summary(self) -> Path:
        return self.path / "summary.json"

    @property
    def is_rehearsal(self) -> bool:
        """Whether the last to train here was a rehearsal."""
        return (self.path / _REHEARSAL).is_file()

    def begin(self, plan_path: Path, *, rehearsal: bool = False, again: bool = False) -> None:
        """Make the folder, copy the plan into it, and mark it as that of a rehearsal or of a run. What a run without a
        checkpoint left in it is removed, unless it is this one, which begins `again`.

        Raises InvalidInput where something cannot be written.
        """
        with _writing(self.path):
            self.path.mkdir(parents=True, exist_ok=True)
            if not again and not self.has_checkpoint:
                files = [self.metrics, self.history, self.ray_log, self.driver, self.shut_out]
                for left in [*files, *self.path.glob(_LOGS), *self.path.glob(COMERS)]:
                    left.unlink(missing_ok=True)
            if not self.plan.exists() or self.plan.read_bytes() != plan_path.read_bytes():
                written = self.plan.with_name(f".{self.plan.name}.new")  # a full disk leaves the other one as it is
                try:
                    shutil.copyfile(plan_path, written)
                    written.replace(self.plan)
                finally:
                    written.unlink(missing_ok=True)
            if rehearsal:
                (self.path / _REHEARSAL).touch()
            else:
                (self.path / _REHEARSAL).unlink(missing_ok=True)


@contextlib.contextmanager
def owned_folder(out_dir: Path | None, *, resume: bool, tell: Callable[[str], None]) -> Iterator[RunFolder]:
    """The folder that `choose_folder` chooses, which is made, and which only this process writes to inside the block.

    A folder that was made here and has stayed empty is removed again. `tell` is told, as one sentence, where the file
    system has no locks. Raises InvalidInput as `choose_folder` does, where another process owns the folder, and where
    it cannot be written.
    """
    named = _newest_run() if resume and out_dir is None else out_dir
    lock: RunLock | None = None
    made: list[Path] = []
    try:
        if named is not None and os.path.lexists(named / LOCK):
            lock = RunLock(named)  # first: that it is in use says more than what is in it
        folder = choose_folder(named, resume=resume)
        if lock is None:
            with _writing(folder.path):
                folder = _make_unnamed(folder.path, made) if named is None else _make(folder.path, made)
            lock = RunLock(folder.path)
            choose_folder(folder.path, resume=resume)  # again: another run may have come and gone meanwhile
        if not lock.locks:
            tell(f"{folder.path}: this file system has no locks, so nothing keeps a second run from writing there")
        yield folder
    finally:
        if lock is not None:
            lock.release()
        for path in reversed(made):
            with contextlib.suppress(OSError):  # something has been written there
                path.rmdir()


def _make(path: Path, made: list[Path]) -> RunFolder:
    """Make a folder and its parents, and name in `made` those that were not there."""
    missing = list(itertools.takewhile(lambda one: not one.exists(), (path, *path.parents)))
    for one in reversed(missing):
        one.mkdir(exist_ok=True)
        made.append(one)
    return RunFolder(path)


def _make_unnamed(path: Path, made: list[Path]) -> RunFolder:
    """Make the folder of a run that the user has not named. Two runs of one second get two folders."""
    _make(path.parent, made)
    for number in itertools.count(2):
        try:
            path.mkdir()
        except FileExistsError:
            path = path.with_name(f"{path.name.partition('_')[0]}_{number}")
        else:
            break
    made.append(path)
    return RunFolder(path)


@contextlib.contextmanager
def _writing(path: Path) -> Iterator[None]:
    """Turn an error of the operating system about a folder into one that names what to do."""
    try:
        yield
    except OSError as error:
        reason = error.strerror or str(error)
        raise InvalidInput(f"cannot be written ({reason}); name another with --out", path=str(path)) from None


def choose_folder(out_dir: Path | None, *, resume: bool) -> RunFolder:
    """The folder to write to; nothing is changed. `out_dir`: what the user named; None: a new, or the newest, one.

    Raises InvalidInput where a run would overwrite something, or there is nothing to resume.
    """
    if resume:
        folder = RunFolder(out_dir if out_dir is not None else _newest_run())
        _require_access(folder)
        if not folder.can_resume:
            raise InvalidInput(
                "no checkpoint here to resume from: name the run's folder with --out, or start without --resume",
                path=str(folder.path),
            )
        return folder
    folder = RunFolder(out_dir if out_dir is not None else RUNS / time.strftime("%Y%m%d-%H%M%S"))
    _require_access(folder)
    if folder.path.exists() and not folder.path.is_dir():
        raise InvalidInput("is a file; --out must name a folder", path=str(folder.path))
    if folder.has_checkpoint:
        raise InvalidInput(
            "holds a run already: add --resume to go on with it, or name another folder", path=str(folder.path)
        )
    if folder.path.is_dir():
        _refuse_foreign(folder.path)
    return folder


def _require_access(folder: RunFolder) -> None:
    """Raises InvalidInput where the operating system does not let this process look at or into the folder."""
    try:
        if folder.path.is_dir():
            next(folder.path.iterdir(), None)
        (folder.checkpoints / LATEST).is_file()
    except OSError as error:
        raise InvalidInput(f"cannot be read ({error.strerror or error})", path=str(folder.path)) from None


def _refuse_foreign(path: Path) -> None:
    """Refuse a folder that holds more than a run without a checkpoint leaves: anything else is somebody's."""
    logs = {RunFolder(path).ray_log, RunFolder(path).output, *path.glob(_LOGS)}
    foreign = [
        one
        for one in path.iterdir()
        if one.name not in _BEGINNINGS and not (one.match(_REQUESTED) or one.match(COMERS))
    ]
    foreign += [one for one in (path / "logs").glob("*") if one not in logs]
    if foreign:
        named = min(foreign).relative_to(path)
        raise InvalidInput(f"holds {str(named)!r}, which is no run's: name an empty folder", path=str(path))


def _newest_run() -> Path:
    """The folder in runs/ whose run has saved a checkpoint last. Rehearsals do not count, whatever they are called."""
    saved = [RunFolder(path) for path in RUNS.glob("*") if RunFolder(path).can_resume]
    runs = [folder for folder in saved if not folder.is_rehearsal]
    if not runs:
        but = f" (only {len(saved)} of rehearsals, which do not count)" if saved else ""
        raise InvalidInput(f"no run with a checkpoint to resume{but}; name its folder with --out", path=str(RUNS))
    return max(runs, key=lambda folder: (_saved_ns(folder), folder.path.name)).path


def _saved_ns(folder: RunFolder) -> int:
    files = [file for file in (folder.checkpoints / LATEST, folder.driver) if file.is_file()]
    return max((file.stat().st_mtime_ns for file in files), default=0)
