"""Fuzz readers, guided by coverage: `python -m tests.fuzz [TARGET ...] --runs 150000` (`make fuzz`).

It begins with the target's seeds and with the corpus, tests/fuzz/corpus/TARGET: inputs that once reached new code, a
line of hexadecimal digits each. `--keep` writes what this run has found there. An input that breaks a target is written
to tests/fuzz/found/TARGET. pytest tries both from then on. The same seed, corpus and code try the same inputs. Exit
code 1: something was found.
"""

import argparse
import contextlib
import io
import os
import shutil
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING, NoReturn

if TYPE_CHECKING:
    from tests.fuzz.target import Target

ROOT = Path(__file__).parents[2]
FOUND = Path(__file__).parent / "found"
CORPUS = Path(__file__).parent / "corpus"
MOST_KEPT, LONGEST_KEPT = 100, 2048
"""Of what reached new code so many inputs of a target are kept, the shortest ones, none with more bytes."""

WORK = ROOT / "build" / "fuzz"
INPUT_S = 25
"""An input that takes longer hangs its reader."""
MOST_MB = 2048
"""The resident memory of a target's process, torch included."""


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.fuzz", description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("targets", nargs="*", metavar="TARGET", help="all, unless some are named")
    parser.add_argument("--runs", type=int, default=150_000, help="inputs of a quick target (default: %(default)s)")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--keep", action="store_true", help="write what reached new code to tests/fuzz/corpus")
    asked = parser.parse_args()
    import atheris

    packages = ["ravnest", "ring_allreduce", "cluster_planner"]
    with contextlib.redirect_stderr(io.StringIO()), atheris.instrument_imports(include=packages):
        from tests.fuzz.targets import targets

        known = targets()
    if unknown := [name for name in asked.targets if name not in known]:
        parser.error(f"there is no target {unknown[0]!r}; there are {', '.join(known)}")
    names = asked.targets or list(known)
    broken = [name for name in names if not _held(name, known[name], asked.runs, asked.seed)]
    if asked.keep:
        for name in names:
            _keep(name, known[name])
    sys.stdout.write(f"{len(broken)} of {len(names)} targets broke{': ' if broken else ''}{', '.join(broken)}\n")
    return 1 if broken else 0


def _held(name: str, target: "Target", runs: int, seed: int) -> bool:
    """Fuzz one target in a child of this process, since libFuzzer ends its process, and say whether the target held."""
    began_s, runs = time.monotonic(), max(1, runs // target.slowness)
    log = WORK / f"{name}.log"
    log.parent.mkdir(parents=True, exist_ok=True)
    child = os.fork()
    if child == 0:
        out = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
        os.dup2(out, 1)
        os.dup2(out, 2)
        _fuzz(name, target, runs, seed)
    _, status = os.waitpid(child, 0)
    held = status == 0
    with contextlib.suppress(OSError):
        (FOUND / name).rmdir()  # nothing was found
    said = "held" if held else f"BROKE: {log}"
    sys.stdout.write(f"{name:20} {runs:7} inputs  {time.monotonic() - began_s:5.1f} s  {said}\n")
    sys.stdout.flush()
    return held


def kept(name: str) -> list[bytes]:
    """The corpus of a target."""
    path = CORPUS / name
    return [bytes.fromhex(line) for line in path.read_text().splitlines()] if path.exists() else []


def _keep(name: str, target: "Target") -> None:
    """Write the corpus of a target: of before, and what this run has found."""
    new = [path.read_bytes() for path in (WORK / name).iterdir() if not path.name.startswith("seed-")]
    found = sorted({*kept(name), *new} - {*target.seeds}, key=lambda data: (len(data), data))
    CORPUS.mkdir(exist_ok=True)
    lines = [f"{data.hex()}\n" for data in found[:MOST_KEPT] if data and len(data) <= LONGEST_KEPT]
    (CORPUS / name).write_text("".join(lines))


def _fuzz(name: str, target: "Target", runs: int, seed: int) -> NoReturn:
    import atheris

    from tests.fuzz.target import MOST_BYTES

    corpus, found = WORK / name, FOUND / name
    shutil.rmtree(corpus, ignore_errors=True)
    for folder in (corpus, found):
        folder.mkdir(parents=True, exist_ok=True)
    for number, data in enumerate([*target.seeds, *kept(name)]):
        (corpus / f"seed-{number:03d}").write_bytes(data)
    options = {"runs": runs, "seed": seed, "max_len": MOST_BYTES, "timeout": INPUT_S, "rss_limit_mb": MOST_MB}
    flags = [f"-{key}={value}" for key, value in options.items()]
    target.takes(b"")  # what it makes at its first input does not count as that input's time
    atheris.Setup(["fuzz", *flags, f"-artifact_prefix={found}/", str(corpus), str(found)], target.takes)
    atheris.Fuzz()
    os._exit(1)  # libFuzzer has ended the process before


if __name__ == "__main__":
    sys.exit(main())
