"""The job's code, as the nodes of a Ray cluster get it: a copy of the job's folder, and of modules beside where the
command runs that the job names.

Decides which files these are: all of the folder, but what no run reads (hidden ones, caches, virtual environments,
runs, weights) and what `.ravnestignore` in it names; at most LARGEST_BYTES in all. Data belongs on the nodes, not here.
"""

import shutil
import tempfile
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from fnmatch import fnmatch
from pathlib import Path

from ravnest.errors import InvalidInput
from ravnest.factories import FactoryConfig
from ravnest.job import JobConfig

LARGEST_BYTES = 64 * 10**6
IGNORE_FILE = ".ravnestignore"
EXCLUDED = (".*", "__pycache__", "node_modules", "runs", "*.egg-info", "*.safetensors", "*.pyc")
_NAMED = 3


@dataclass(frozen=True)
class JobCode:
    """`files`: where each lies here, and where under the copy."""

    files: tuple[tuple[Path, Path], ...]

    @contextmanager
    def copied(self) -> Iterator[Path]:
        """A folder that holds them, for the length of a `with` block."""
        with tempfile.TemporaryDirectory(prefix="ravnest-job-") as folder:
            for source, target in self.files:
                place = Path(folder) / target
                place.parent.mkdir(parents=True, exist_ok=True)
                shutil.copyfile(source, place)
            yield Path(folder)


def job_code(job: JobConfig, job_file: str | Path, factories: Iterable[str] = (), here: Path | None = None) -> JobCode:
    """What the factories of `job`, and others that nodes.yaml names, may import. `here`: the folder that one works in.

    Raises InvalidInput where it is more than LARGEST_BYTES.
    """
    folder = Path(job_file).resolve().parent
    working = (here or Path.cwd()).resolve()
    found = dict(_files(folder, folder))
    for module in sorted({reference.partition(":")[0].partition(".")[0] for reference in (*_named(job), *factories)}):
        if not _module(folder, module) and (path := _module(working, module)) is not None:
            found |= dict(_files(path, working))
    _require_little(found, folder)
    return JobCode(tuple((source, target) for target, source in sorted(found.items())))


def _named(job: JobConfig) -> Sequence[str]:
    several = (job.model.factory, job.data.factory, job.loss, *job.metrics, job.sample)
    references = (each.factory if isinstance(each, FactoryConfig) else each for each in several if each is not None)
    return [reference for reference in references if ":" in reference]


def _module(folder: Path, name: str) -> Path | None:
    return next((path for path in (folder / name, folder / f"{name}.py") if path.exists()), None)


def _files(path: Path, root: Path) -> Iterator[tuple[Path, Path]]:
    """(Where under `root`, where it lies), without what is excluded. Symbolic links are followed, but for
    those to a folder that holds them: they would never end."""
    ignored = _patterns(root)
    waiting = [path]
    while waiting:
        each = waiting.pop()
        under = each.relative_to(root)
        if each != root and any(fnmatch(name, pattern) for pattern in ignored for name in (each.name, str(under))):
            continue
        if each.is_dir():
            if not (each / "pyvenv.cfg").exists() and not _holds_itself(each):
                waiting.extend(sorted(each.iterdir()))
        elif each.is_file():
            yield under, each


def _holds_itself(folder: Path) -> bool:
    return folder.is_symlink() and folder.resolve() in (parent.resolve() for parent in folder.parents)


def _patterns(root: Path) -> Sequence[str]:
    given = root / IGNORE_FILE
    lines = given.read_text(encoding="utf-8").splitlines() if given.is_file() else []
    wanted = [line.strip().rstrip("/") for line in lines]
    return [*EXCLUDED, *(line for line in wanted if line and not line.startswith("#"))]


def _require_little(found: dict[Path, Path], folder: Path) -> None:
    sizes = {target: source.stat().st_size for target, source in found.items()}
    if sum(sizes.values()) <= LARGEST_BYTES:
        return
    largest = sorted(sizes, key=lambda target: -sizes[target])[:_NAMED]
    named = ", ".join(f"{target} ({sizes[target] / 1e6:.0f} MB)" for target in largest)
    total = sum(sizes.values())
    raise InvalidInput(
        f"holds {total / 1e6:.0f} MB that every node would get with the job's code, and {LARGEST_BYTES / 1e6:.0f}"
        f" are the most: {named}. List what no node imports in {IGNORE_FILE}; data belongs on the nodes, where `data`"
        " in nodes.yaml says",
        path=str(folder),
    )
