"""`python -m experiments.allreduce [--quick] [--only PART…] [--json]`: measure, judge, and write RESULT.md."""

import argparse
import json
import shlex
import signal
import sys
import time
import traceback
from collections.abc import Callable, Mapping
from pathlib import Path

import torch

from experiments.allreduce import exactness, fault_table, lab, loopback, pipeline, rings, shaped, stability, wire_bytes
from experiments.allreduce.options import Options
from experiments.report import ROOT, Part, Report, machine, verdict

PARTS: Mapping[str, Callable[[Options], Part]] = {
    "exactness": exactness.run,
    "stability": stability.run,
    "bytes": wire_bytes.run,
    "loopback": loopback.run,
    "shaped": shaped.run,
    "rings": rings.run,
    "pipeline": pipeline.run,
    "faults": fault_table.run,
}
TITLE = "Parallel multi-ring all-reduce"
INTRO = (
    "Does the averaging of `ring_allreduce` give exact averages, at the speed of the wire, without more bytes than a "
    "ring "
    "needs, beside a running pipeline, and in spite of failures? Every baseline was measured in the same run as what "
    "it is "
    "compared to. docs/experiments.md says what each part does."
)
QUICK_FOLDER = ROOT / "runs" / "experiments" / "allreduce"


def main(arguments: list[str] | None = None) -> int:
    """The exit code: 0 when all parts that were asked for ran, whatever their verdicts; 1 when one failed to run."""
    parser = argparse.ArgumentParser(prog="python -m experiments.allreduce", description=__doc__)
    parser.add_argument("--quick", action="store_true", help="small and short, for CI: its timings prove nothing")
    parser.add_argument(
        "--only", nargs="+", choices=list(PARTS), default=list(PARTS), metavar="PART", help=f"{', '.join(PARTS)}"
    )
    parser.add_argument("--json", action="store_true", help="print all results as JSON")
    parser.add_argument("--out", type=Path, help="folder to write to (default: beside the code; --quick: in runs/)")
    parser.add_argument("--wanlab", metavar="PATH", help="the program that emulates links with namespaces")
    parser.add_argument("--seed", type=int, default=0)
    asked = parser.parse_args(arguments)
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # so that processes and namespaces are taken down
    before = machine()
    torch.set_num_threads(1)
    program, why = lab.find(asked.wanlab)
    options = Options(asked.quick, asked.seed, program, why)
    report = Report(asked.out or (QUICK_FOLDER if asked.quick else Path(__file__).parent), TITLE, INTRO)
    flags = [*(["--quick"] if asked.quick else []), *(["--seed", str(asked.seed)] if asked.seed else [])]
    failed = []
    for name in (name for name in PARTS if name in asked.only):
        began_s = time.monotonic()
        try:
            part = PARTS[name](options)
        except Exception:  # noqa: BLE001 - the other parts' results are worth having; the exit code tells
            traceback.print_exc()
            failed.append(name)
            continue
        command = shlex.join(["python", "-m", "experiments.allreduce", *flags, "--only", name])
        seconds = time.monotonic() - began_s
        report.record(part, command=command, machine=before, seconds=seconds, order=list(PARTS))
        for claim in part.claims:
            print(
                f"{name}: {verdict(claim.held)}: {claim.statement}: {claim.measured} (target {claim.target})",
                file=sys.stderr,
            )
        print(f"{name}: {seconds:.0f} s", file=sys.stderr, flush=True)
    if asked.json:
        print(json.dumps(report.document, indent=1))
    if failed:
        print(f"failed: {', '.join(failed)}; their last results were kept", file=sys.stderr)
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
