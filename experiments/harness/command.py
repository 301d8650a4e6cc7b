"""The command line of an experiment of several parts, each measured, judged and recorded whatever becomes of others."""

import argparse
import json
import shlex
import signal
import sys
import time
import traceback
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

import torch
from threadpoolctl import threadpool_limits

from experiments.harness.report import ROOT, Part, Report, machine, verdict

Parts = Mapping[str, Callable[[], Part]]

QUICK = (
    "this was --quick, too small and short to judge by: a claim that is not held here says that the program ran, and"
    " nothing of the claim; the targets are those of the whole experiment"
)
"""What is said at the end of a quick run, whose verdicts would be taken for findings."""


def parser_for(name: str, description: str | None, parts: Sequence[str]) -> argparse.ArgumentParser:
    """What every experiment can be asked."""
    parser = argparse.ArgumentParser(prog=f"python -m experiments.{name}", description=description)
    parser.add_argument("--quick", action="store_true", help="small and short, for CI: its timings prove nothing")
    parser.add_argument(
        "--only", nargs="+", choices=parts, default=list(parts), metavar="PART", help=f"{', '.join(parts)}"
    )
    parser.add_argument("--json", action="store_true", help="print all results as JSON")
    parser.add_argument("--out", type=Path, help="folder to write to (default: beside the code; --quick: in runs/)")
    return parser


def run_parts(
    name: str, asked: argparse.Namespace, parts: Parts, *, title: str, intro: str, flags: Sequence[str] = ()
) -> int:
    """Run the parts that were asked for, in order. `flags`: what else was asked, for the commands in the report.

    Returns the exit code: 0 when all of them ran, whatever their verdicts; 1 when one failed to run.
    """
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # so that processes and namespaces are taken down
    before = machine()
    torch.set_num_threads(1)
    threadpool_limits(1, user_api="blas")  # numpy's small products take longer in threads that wait for each other
    folder = ROOT / "runs" / "experiments" / name if asked.quick else ROOT / "experiments" / name
    report = Report(asked.out or folder, title, intro)
    failed = []
    for part_name in (part_name for part_name in parts if part_name in asked.only):
        quick = ["--quick"] if asked.quick else []
        command = shlex.join(["python", "-m", f"experiments.{name}", *quick, *flags, "--only", part_name])
        began_s = time.monotonic()
        try:
            part = parts[part_name]()
            seconds = time.monotonic() - began_s
            report.record(part, command=command, machine=before, seconds=seconds, order=list(parts))
        except Exception:  # noqa: BLE001 - the other parts' results are worth having; the exit code tells
            traceback.print_exc()
            failed.append(part_name)
            continue
        for claim in part.claims:
            found = f"{claim.name}: {claim.statement}: {claim.measured} (target {claim.target})"
            print(f"{part_name}: {verdict(claim.held)}: {found}", file=sys.stderr)
        print(f"{part_name}: {seconds:.0f} s", file=sys.stderr, flush=True)
    if asked.quick:
        print(f"{name}: {QUICK}", file=sys.stderr)
    print(f"written: {report.folder / 'RESULT.md'}", file=sys.stderr)
    if asked.json:
        print(json.dumps(report.document, indent=1))
    if failed:
        print(f"failed: {', '.join(failed)}; their last results were kept", file=sys.stderr)
    return 1 if failed else 0
