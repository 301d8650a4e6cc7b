"""The code of a job as it goes to volunteers: the small text files of the job's folder, and one hash of all of them.

In: a job.yaml, or files that came over the network. Out: the files by their paths, the hash that an invitation names,
and a folder on the volunteer's machine. Nothing is imported or run here.
"""

import hashlib
import re
from collections.abc import Mapping
from pathlib import Path

from ravnest.collaboration.messages import CODE_BYTES, MOST_CODE_FILES
from ravnest.errors import InvalidInput

SUFFIXES = (".py", ".yaml", ".yml", ".json", ".txt", ".toml")
"""What travels of a folder. Data do not: a job's data factory finds or fetches them on each machine."""

_SAFE = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.-]*(/[A-Za-z0-9_][A-Za-z0-9_.-]*)*", re.ASCII)
_LEFT_OUT = {"runs", "__pycache__", "build"}

SECRETS_FILE = "keys.json"
"""A folder with a file of this name is that of a backbone: nothing in it travels, wherever it lies."""


def collected(job_file: Path) -> dict[str, bytes]:
    """The files of the folder of `job_file`, by their paths in it. Raises InvalidInput where they are too many."""
    folder = job_file.resolve().parent
    if (folder / SECRETS_FILE).exists():
        message = f"its folder has a backbone's {SECRETS_FILE}, and is what volunteers are sent"
        raise InvalidInput(message, path=str(job_file), hint="keep the two in folders of their own")
    files = {inside: path.read_bytes() for inside, path in _texts(folder) if _travels(inside, path)}
    if len(files) > MOST_CODE_FILES:
        message = f"its folder has {len(files)} files of code; at most {MOST_CODE_FILES} go to volunteers"
        raise InvalidInput(message, path=str(job_file), hint="move the job and its code to a folder of their own")
    if job_file.resolve().name not in files:
        raise InvalidInput("expected a file of YAML of at most 1 MiB, with a plain name", path=str(job_file))
    return files


def not_collected(job_file: Path) -> list[str]:
    """The text files of the folder of `job_file` that do not travel: they are too large, or have no plain name."""
    return [inside for inside, path in _texts(job_file.resolve().parent) if not _travels(inside, path)]


def _texts(folder: Path) -> list[tuple[str, Path]]:
    """The files of these suffixes, by their paths in the folder, without what backbones and runs have left there."""
    of_backbones = {path.parent for path in folder.rglob(SECRETS_FILE)}
    found = [(path.relative_to(folder), path) for path in sorted(folder.rglob("*")) if path.suffix in SUFFIXES]
    return [
        (inside.as_posix(), path)
        for inside, path in found
        if path.is_file() and not _LEFT_OUT & set(inside.parts) and not of_backbones & set(path.parents)
    ]


def _travels(inside: str, path: Path) -> bool:
    return bool(_SAFE.fullmatch(inside)) and path.stat().st_size <= CODE_BYTES


def code_hash(files: Mapping[str, bytes]) -> str:
    """One SHA-256 of all paths and contents, as hexadecimal digits."""
    digest = hashlib.sha256(b"ravnest code 1")
    for path, data in sorted(files.items()):
        for part in (path.encode(), data):
            digest.update(len(part).to_bytes(8, "big") + part)
    return digest.hexdigest()


def require_safe(path: str) -> None:
    """Raises InvalidInput for a path that is not plainly inside a folder: it has come over the network."""
    if not _SAFE.fullmatch(path) or Path(path).suffix not in SUFFIXES:
        raise InvalidInput(f"a file of code has the path {path[:100]!r}; expected a plain path of text files")


def written(files: Mapping[str, bytes], home: Path) -> Path:
    """Write the files to a folder of their hash under `home`, and return it. What differs there is written again."""
    folder = home / code_hash(files)
    for path, data in files.items():
        require_safe(path)
        target = folder / path
        target.parent.mkdir(parents=True, exist_ok=True)
        if not target.is_file() or target.read_bytes() != data:
            target.write_bytes(data)
    return folder
