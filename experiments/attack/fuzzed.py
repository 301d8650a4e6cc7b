"""Fuzzed frames and files: as many as asked, through the readers of tests/fuzz, and what broke.

Each target is fuzzed in a process of its own, guided by coverage (atheris). An undeclared exception, an input that
takes longer than 25 s, and 2 GiB of resident memory break it.
"""

import re
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import dataclass

from experiments.harness.report import ROOT, Cell, Claim, Part, Table
from ravnest.errors import InvalidInput

FRAMES = (
    *("message", "stage_message", "stage_fields", "chunk", "control_line", "control_fields", "welcome_fields"),
    *("shared_head", "line", "collaboration_fields", "contribution", "share", "from_helper", "from_giver"),
    *("lent_fields", "lent_answers"),
    *("hash_table", "experts_record", "experts_request", "experts_fields"),
)
FILES = (
    *("manifest", "checkpoint", "safetensors", "weights", "metrics", "key_pair", "allow_list", "identity", "keyring"),
    *("people", "invitation", "driver_state", "shut_out", "instructions", "trace"),
    *("nodes", "job", "collaborative_job", "experts", "plan", "scenario", "yaml"),
)
LEAST_FRAMES, LEAST_FILES = 10**6, 10**4
RUNS = {"frames": 150_000, "files": 100_000}
"""Inputs of a quick target."""

QUICK = 100
LIMIT_S = 3600.0
LINE = re.compile(r"^(\S+)\s+(\d+) inputs\s+([\d.]+) s\s+(held|BROKE.*)$", re.MULTILINE)


@dataclass(frozen=True)
class Fuzzed:
    """One target."""

    target: str
    inputs: int
    seconds: float
    verdict: str


def fuzzed(targets: Sequence[str], runs: int) -> list[Fuzzed]:
    """Fuzz these targets. `runs`: inputs of a quick one; slow ones take so many fewer.

    Raises InvalidInput where the fuzzer does not run: it comes with `pip install atheris`.
    """
    command = [sys.executable, "-m", "tests.fuzz", *targets, "--runs", str(runs)]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=LIMIT_S, check=False)
    found = [Fuzzed(name, int(count), float(s), said) for name, count, s, said in LINE.findall(done.stdout)]
    if [each.target for each in found] != [*targets]:
        raise InvalidInput(f"{' '.join(command)} ended with {done.returncode}: {(done.stderr or done.stdout)[-500:]}")
    return found


def run(*, quick: bool) -> Part:
    """Fuzz frames, then files."""
    rows: list[list[Cell]] = []
    claims = []
    for what, targets, least in (("frames", FRAMES, LEAST_FRAMES), ("files", FILES, LEAST_FILES)):
        found = fuzzed(targets, QUICK if quick else RUNS[what])
        broke = [each.target for each in found if each.verdict != "held"]
        count = sum(each.inputs for each in found)
        claims.append(
            Claim(
                what,
                f"fuzzed {what} without an undeclared exception, a hang, or memory beyond its bound",
                f">= {least:,}",
                f"{count:,}" if not broke else f"{count:,}, and these broke: {', '.join(broke)}",
                False if broke else None if quick else count >= least,
            )
        )
        rows += [[what, each.target, each.inputs, each.seconds, each.verdict] for each in found]
    columns = ["what", "target", "inputs", "seconds", "verdict"]
    return Part("fuzz", "Fuzzed frames and files", claims, [Table("Targets", columns, rows)])
