"""The job's code, as the nodes of a Ray cluster get it.

In: a job and its file. Out: the files to copy to every node. They are those of the job's folder, and the modules in the
working folder that the job names. Left out is what no run reads (hidden files, caches, virtual environments, runs,
weights), what `.ravnestignore` in the folder lists, and files whose names are those of keys and passwords. Contents are
not looked into. All files together may have LARGEST_BYTES, because data belongs on the nodes.
"""

import tempfile
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from fnmatch import fnmatch
from pathlib import Path

from ravnest.errors import InvalidInput, RunFailed
from ravnest.job.config import Job

LARGEST_BYTES = 64 * 10**6
IGNORE_FILE = ".ravnestignore"
EXCLUDED = (".*", "__pycache__", "node_modules", "runs", "*.egg-info", "*.safetensors", "*.pyc")
SECRETS = (
    *("id_rsa*", "id_dsa*", "id_ecdsa*", "id_ed25519*", "*.pem", "*.key", "*.p12", "*.pfx", "*.ppk", "*.jks"),
    *("*.keystore", "*.kdbx", "*.gpg", "*.env", "*.secret", "*.token", "*_token", "credentials*", "secrets*"),
    "service-account*.json",
)
"""Patterns of names, in lower case, of files and folders that most likely nobody means to send."""
_HARMLESS = {".py", ".pub"}
_NAMED, _MOST_NAMED = 3, 8


@dataclass(frozen=True)
class JobCode:
    """The files to send, as pairs of the path here and the path in the copy.

    `kept_back` are those that are not sent because of their names.
    """

    files: tuple[tuple[Path, Path], ...]
    kept_back: tuple[Path, ...] = ()

    @property
    def notice(self) -> str | None:
        """What the user should know about the files that are kept back; None where there are none."""
        if not self.kept_back:
            return None
        more = len(self.kept_back) - _MOST_NAMED
        named = ", ".join(str(path) for path in self.kept_back[:_MOST_NAMED]) + (f" and {more} more" * (more > 0))
        return (
            f"not sent to the nodes with the job's code, for their names are those of keys or passwords: {named}."
            f" A line !{self.kept_back[0]} in {IGNORE_FILE} sends one; list or move them to be told no more"
        )

    @contextmanager
    def copied(self) -> Iterator[Path]:
        """A context manager that gives a temporary folder with a copy of the files.

        Raises InvalidInput for a file that cannot be read, and RunFailed where there is no room for the copy.
        """
        with tempfile.TemporaryDirectory(prefix="ravnest-job-") as folder:
            for source, target in self.files:
                place = Path(folder) / target
                with _readable(source):
                    content = source.read_bytes()
                try:
                    place.parent.mkdir(parents=True, exist_ok=True)
                    place.write_bytes(content)
                except OSError as error:
                    raise RunFailed(f"could not copy the job's code to {place}: {error.strerror or error}") from error
            yield Path(folder)


def job_code(job: Job, job_file: str | Path, factories: Iterable[str] = (), here: Path | None = None) -> JobCode:
    """The files that the callables of `job` may import, and those of the `factories` that nodes.yaml names.

    `here` is the working folder; None takes the current one. Raises InvalidInput for more than LARGEST_BYTES, or for a
    file that cannot be read.
    """
    folder = Path(job_file).resolve().parent
    working = (here or Path.cwd()).resolve()
    found = dict(_files(folder, folder))
    named = [reference for _, reference in job.references]
    for module in sorted({reference.partition(":")[0].partition(".")[0] for reference in (*named, *factories)}):
        if not _module(folder, module) and (path := _module(working, module)) is not None:
            found |= dict(_files(path, working))
    wanted = {line[1:] for root in (folder, working) for line in _lines(root) if line.startswith("!")}
    secret = {target for target in found if _is_secret(target) and not _matches(target, wanted)}
    sent = {target: source for target, source in sorted(found.items()) if target not in secret}
    _require_little(sent, folder)
    return JobCode(tuple((source, target) for target, source in sent.items()), tuple(sorted(secret)))


def _is_secret(target: Path) -> bool:
    if target.suffix in _HARMLESS:
        return False
    return any(fnmatch(part.lower(), pattern) for part in target.parts for pattern in SECRETS)


def _matches(target: Path, patterns: Iterable[str]) -> bool:
    return any(fnmatch(name, pattern) for pattern in patterns for name in (target.name, str(target)))


@contextmanager
def _readable(path: Path) -> Iterator[None]:
    """Turns an error of the file system into an InvalidInput that names the file."""
    try:
        yield
    except OSError as error:
        message = (
            f"cannot be read ({error.strerror or error}), and every node would get it with the job's code: mend that,"
            f" or list it in {IGNORE_FILE}"
        )
        raise InvalidInput(message, path=str(path)) from error


def _module(folder: Path, name: str) -> Path | None:
    return next((path for path in (folder / name, folder / f"{name}.py") if path.exists()), None)


def _files(path: Path, root: Path) -> Iterator[tuple[Path, Path]]:
    """Yields for each file its path under `root` and its path on disk, without what is excluded.

    Symbolic links are followed, except those to a folder that holds them, which would never end.
    """
    ignored = _patterns(root)
    waiting = [path]
    while waiting:
        each = waiting.pop()
        under = each.relative_to(root)
        if each != root and _matches(under, ignored):
            continue
        with _readable(each):
            if each.is_dir():
                if not (each / "pyvenv.cfg").exists() and not _holds_itself(each):
                    waiting.extend(sorted(each.iterdir()))
                continue
            is_file = each.is_file()
        if is_file:
            yield under, each


def _holds_itself(folder: Path) -> bool:
    return folder.is_symlink() and folder.resolve() in (parent.resolve() for parent in folder.parents)


def _patterns(root: Path) -> Sequence[str]:
    return [*EXCLUDED, *(line for line in _lines(root) if not line.startswith("!"))]


def _lines(root: Path) -> Sequence[str]:
    """The patterns in the IGNORE_FILE of `root`: what is not sent, and after a `!` what is sent all the same."""
    given = root / IGNORE_FILE
    lines = given.read_text(encoding="utf-8").splitlines() if given.is_file() else []
    wanted = [line.strip().rstrip("/") for line in lines]
    return [line for line in wanted if line and not line.startswith("#")]


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
