"""What checking a job's model found, kept by fingerprint: planning again for the same job takes seconds.

In: a job, its data, and what its code reads. Out: a `CheckedModel` that was found before, or None. Each is a JSON file
in the user's cache folder (RAVNEST_CACHE names another; empty: none). It holds no weights and is never unpickled.

Its name is a hash of the job without what changes no check, the data's fingerprint, how much was checked, the installed
libraries, and ravnest's own code. Inside stand the files that the job's code is in and those that it opened, with
hashes of their contents: where one differs, nothing is found, and neither where the file itself was altered. Of files
that are read without Python, only those that are named here count.
"""

import hashlib
import json
import os
import sys
import sysconfig
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Literal, get_args

from pydantic import TypeAdapter, ValidationError

import ravnest
from cluster_planner import Cluster, ModelCosts, Plan, SpanCosts
from ravnest.errors import RavnestError
from ravnest.factories import is_library, source_files
from ravnest.job.config import Job
from ravnest.splitting.module_outputs import ModuleOutput
from ravnest.user_cache import kept_folder

MOST_KEPT = 64
"""The number of checks that are kept; the oldest go."""
MOST_BYTES = 16 << 20
"""The largest file that is written or read."""
MOST_FILES = 4096
"""A job that opens more files is not kept."""
HASHED_BYTES = 64 << 20
"""Of a larger file, size and time count instead of its contents."""
_CHANGES_NO_CHECK = ("average_every", "max_lag", "stop", "report_to")


@dataclass(frozen=True)
class CheckedModel:
    """What planning needs of a model that was checked."""

    costs: ModelCosts
    reading_s: float
    """The seconds in which a process reads a micro-batch."""
    whole_because: str = ""
    taken_buffers: str = ""
    """The warning about buffers that rounds take from one cluster; for plans of several clusters."""
    warnings: tuple[str, ...] = ()
    tried: tuple[str, ...] = ()
    """The pipelines whose stages were tried in a fresh process, by `pipelines_of`."""
    outputs: tuple[ModuleOutput | None, ...] = ()
    """What crosses the end of each unit."""

    def has_tried(self, pipelines: Sequence[str]) -> bool:
        """Whether all of these were tried, by themselves or with each unit as a stage."""
        return all(one in self.tried or _as_units(one) in self.tried for one in pipelines)

    def has_tried_units(self, plan: Plan) -> bool:
        """Whether each unit was tried as a stage, as this plan needs it, so that other cuts need no trial."""
        return set(units_of(plan)) <= set(self.tried)


Way = Literal["", "at once", "unit by unit"]
"""How a stage recomputes; empty: it does not."""
WAYS: tuple[Way, ...] = get_args(Way)
_LETTERS: Mapping[Way, str] = {"": "", "at once": "r", "unit by unit": "u"}


def recomputing_ways(plan: Plan, cluster: Cluster) -> list[Way]:
    """How each stage of a cluster recomputes."""
    spans = SpanCosts(plan.costs, plan.workload)
    return [
        ("unit by unit" if spans.recomputes_unit_by_unit(*stage.units, place, cluster.window) else "at once")
        if stage.recomputes
        else ""
        for stage, place in ((stage, (index, len(cluster.stages))) for index, stage in enumerate(cluster.stages))
    ]


def pipelines_of(plan: Plan) -> tuple[str, ...]:
    """The different pipelines of a plan, as words: where each stage ends, with `r` where it recomputes, and `u` where
    it does so unit by unit."""
    return tuple(
        dict.fromkeys(
            " ".join(
                f"{stage.units[1]}{_LETTERS[way]}"
                for stage, way in zip(cluster.stages, recomputing_ways(plan, cluster), strict=True)
            )
            for cluster in plan.clusters
        )
    )


def units_of(plan: Plan) -> tuple[str, ...]:
    """What was tried of a plan of which each unit was tried as a stage of its own."""
    return tuple(dict.fromkeys(_as_units(one) for one in pipelines_of(plan)))


def _as_units(pipeline: str) -> str:
    return "units, run apart" if "u" in pipeline else "units, recomputed" if "r" in pipeline else "units"


@contextmanager
def noting_files() -> Iterator[set[str]]:
    """Notes the files that this process opens for reading while the `with` block runs, those of libraries left out."""
    _install_hook()
    noted: set[str] = set()
    _listening.append(noted)
    try:
        yield noted
    finally:
        _listening.remove(noted)


_listening: list[set[str]] = []
_hooked: list[bool] = []


def _install_hook() -> None:
    """An audit hook cannot be taken away, so there is one for good, which does nothing while nobody listens."""
    if not _hooked:
        _hooked.append(True)
        sys.addaudithook(_heard)


def _heard(event: str, args: tuple[object, ...]) -> None:
    if event == "open" and _listening:
        path, mode = args[0], args[1]
        if isinstance(path, str | bytes | os.PathLike) and not (isinstance(mode, str) and set(mode) & set("wxa")):
            for noted in _listening:
                noted.add(str(Path.cwd() / os.fsdecode(path)))


class KeptChecks:
    """The checks that a folder keeps."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    @classmethod
    def of_user(cls) -> "KeptChecks | None":
        """Those of this user; None where the environment says that nothing is to be kept."""
        folder = kept_folder("checks")
        return None if folder is None else cls(folder)

    def find(self, mark: str) -> CheckedModel | None:
        """What was kept under this mark, if no file that it depends on has changed since."""
        path = self._path(mark)
        try:
            status = path.stat()
            if status.st_size > MOST_BYTES or status.st_uid != os.getuid():
                return None
            said = json.loads(path.read_bytes())
            if said["sha256"] != _hash_of(said["found"], said["files"]):
                return None
            if any(_state_of(file) != state for file, state in said["files"].items()):
                return None
            found = _ADAPTER.validate_python(said["found"])
            os.utime(path)
        except (OSError, ValueError, TypeError, KeyError, AttributeError, ValidationError, RavnestError):
            return None
        return found

    def keep(self, mark: str, found: CheckedModel, opened: set[str]) -> None:
        """Keep what was found, with the files that the job's code is in and has opened. What cannot be written is not
        kept.
        """
        files = {file for file in (*source_files(), *opened) if not _is_passing(file)}
        if len(files) > MOST_FILES:
            return
        states = {file: state for file in sorted(files) if (state := _state_of(file))}
        self._write(mark, _ADAPTER.dump_python(found, mode="json"), states)

    def add_tried(self, mark: str, tried: Sequence[str]) -> None:
        """Note under a mark that these pipelines were tried, too."""
        if (found := self.find(mark)) is None:
            return
        with suppress(OSError, ValueError, KeyError):
            files = json.loads(self._path(mark).read_bytes())["files"]
            more = replace(found, tried=tuple(dict.fromkeys((*found.tried, *tried))))
            self._write(mark, _ADAPTER.dump_python(more, mode="json"), files)

    def _write(self, mark: str, found: object, files: dict[str, str]) -> None:
        body = json.dumps({"sha256": _hash_of(found, files), "found": found, "files": files}).encode()
        if len(body) > MOST_BYTES:
            return
        with suppress(OSError):
            self._folder.mkdir(mode=0o700, parents=True, exist_ok=True)
            new = self._folder / f"{mark}.{os.getpid()}.new"
            new.write_bytes(body)
            new.replace(self._path(mark))
            kept = sorted(self._folder.glob("*.json"), key=lambda path: path.stat().st_mtime)
            for old in kept[:-MOST_KEPT]:
                old.unlink(missing_ok=True)

    def _path(self, mark: str) -> Path:
        return self._folder / f"{mark}.json"


_ADAPTER = TypeAdapter(CheckedModel)


def mark_of(job: Job, data: str, check: str) -> str:
    """The name under which the check of a job is kept. `data`: the fingerprint of its data."""
    said = job.model_dump(mode="json")
    for name in _CHANGES_NO_CHECK:
        said.pop(name)
    folders = {sysconfig.get_path(name) for name in ("purelib", "platlib")}
    installed = sorted(path.name for folder in folders for path in Path(folder).glob("*.dist-info"))
    own = Path(ravnest.__file__).parent
    code = [(str(path.relative_to(own)), _state_of(str(path))) for path in sorted(own.rglob("*.py"))]
    whole = (said, str(job.file), str(Path.cwd()), data, check, sys.version, installed, code)
    return hashlib.sha256(json.dumps(whole, default=str).encode()).hexdigest()[:32]


def _is_passing(file: str) -> bool:
    """Whether a file says nothing about the job: those of libraries and of the kernel, and compiled code."""
    return file.endswith(".pyc") or file.startswith(("/proc/", "/sys/", "/dev/")) or is_library(file)


def _state_of(file: str) -> str:
    """The hash of a file's contents, or of a large one size and time; empty where there is no such file."""
    try:
        path = Path(file)
        if not path.is_file():
            return ""
        if (status := path.stat()).st_size > HASHED_BYTES:
            return f"{status.st_size} bytes of {status.st_mtime_ns}"
        return hashlib.sha256(path.read_bytes()).hexdigest()
    except OSError:
        return ""


def _hash_of(found: object, files: object) -> str:
    return hashlib.sha256(json.dumps([found, files], sort_keys=True).encode()).hexdigest()
