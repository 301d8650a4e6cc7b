"""The job's code, as the nodes of a Ray cluster get it: a copy of the job's folder, and of modules beside where the
command runs that the job names.

Decides which files these are: all of the folder, but what no run reads (hidden ones, caches, virtual environments,
runs, weights), what `.ravnestignore` in it names, and what is called as keys and passwords are; at most LARGEST_BYTES
in all. Data belongs on the nodes, not here. Looks into no file.
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
"""Names of files, or of folders they lie in, that most likely nobody means to give away; in small letters."""
_HARMLESS = {".py", ".pub"}
_NAMED, _MOST_NAMED = 3, 8


@dataclass(frozen=True)
class JobCode:
    """`files`: where each lies here, and where under the copy. `kept_back`: those that look like secrets."""

    files: tuple[tuple[Path, Path], ...]
    kept_back: tuple[Path, ...] = ()

    @property
    def notice(self) -> str | None:
        """What the user should know of `kept_back`; None where nothing is."""
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
        """A folder that holds them, for the length of a `with` block.

        Raises InvalidInput for one that cannot be read, RunFailed where there is no room for the copy.
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
    """What the factories of `job`, and others that nodes.yaml names, may import. `here`: the folder that one works in.

    Raises InvalidInput where it is more than LARGEST_BYTES, or cannot be read.
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
    """Names what cannot be read."""
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
    """(Where under `root`, where it lies), without what is excluded. Symbolic links are followed, but for
    those to a folder that holds them: they would never end."""
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
    """Of its IGNORE_FILE: patterns of what stays here, and behind a ! of what goes along all the same."""
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
