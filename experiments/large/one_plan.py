"""`python -m experiments.large.one_plan`: makes one plan in this process, and prints what that took as JSON.

In: a configuration, a fleet of equal nodes and how much is to be checked, as JSON on the standard input. Out: on the
last line of the standard output, the seconds and the peak memory, the model's units, and a digest of the plan.
"""

import hashlib
import json
import sys
import tempfile
import time
import warnings
from pathlib import Path
from typing import Any

CODE = """
from types import SimpleNamespace
import torch
from torch.utils.data import TensorDataset

def tokens(vocabulary, length):
    ids = torch.arange(64 * (length + 1)).view(64, length + 1) % vocabulary
    part = TensorDataset(ids[:, :-1].contiguous(), ids[:, 1:].contiguous())
    return SimpleNamespace(train=part, held_out=part)
"""
LENGTH = 64
"""Tokens of a sample."""


def planned(config: dict[str, Any], nodes: int, memory_gb: float, check: str, folder: Path) -> dict[str, Any]:
    """Plan the model of a configuration for so many equal nodes. Raises InvalidInput where that is refused."""
    import ravnest
    from cluster_planner import Fleet, Node, save_plan

    (folder / "tokens.py").write_text(CODE)
    job = {
        "model": {"huggingface": config},
        "data": {"factory": "tokens:tokens", "args": {"vocabulary": config["vocab_size"], "length": LENGTH}},
        "micro_batch": 1,
        "optimizer": {"name": "adamw", "lr": 1e-4},
        "stop": {"samples": 10**6},
    }
    (folder / "job.yaml").write_text(json.dumps(job))  # which is YAML, too
    fleet = Fleet(
        tuple(
            Node(
                name=f"n{index}",
                flops_per_s=1e13,
                memory_bytes=int(memory_gb * 1e9),
                up_bytes_per_s=1.25e8,
                down_bytes_per_s=1.25e8,
            )
            for index in range(nodes)
        )
    )
    steps: list[tuple[str, float, float]] = []
    plan = ravnest.plan(
        fleet,
        folder / "job.yaml",
        check=check,
        cache=False,
        min_stages=2,
        progress=lambda words: steps.append((words, time.monotonic(), time.process_time())),
        warn=lambda words: None,
    )
    save_plan(plan, folder / "plan.yaml")
    ends = [*steps[1:], ("", time.monotonic(), time.process_time())]
    text = (folder / "plan.yaml").read_text().replace(str(folder), "FOLDER")
    return {
        "units": len(plan.costs.units),
        "largest_unit_bytes": max(unit.parameter_bytes for unit in plan.costs.units),
        "parameter_bytes": sum(unit.parameter_bytes for unit in plan.costs.units),
        "stages": sum(len(cluster.stages) for cluster in plan.clusters),
        "plan": hashlib.sha256(text.encode()).hexdigest(),
        "plan_bytes": len(text),
        "steps": {
            words: {"s": end_s - begin_s, "cpu_s": end_cpu_s - begin_cpu_s}
            for (words, begin_s, begin_cpu_s), (_, end_s, end_cpu_s) in zip(steps, ends, strict=True)
        },
    }


def peak_bytes() -> int:
    """The largest resident memory that this process has had."""
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) << 10 for line in lines if line.startswith("VmHWM:"))


def main() -> None:
    began_s = time.monotonic()
    asked = json.load(sys.stdin)
    warnings.simplefilter("ignore")
    with tempfile.TemporaryDirectory(prefix="ravnest-large-") as folder:
        try:
            found = planned(**asked, folder=Path(folder))
        except Exception as error:  # noqa: BLE001 - what is refused is a result, too
            found = {"refused": " ".join(str(error).split())}
    found |= {"seconds": time.monotonic() - began_s, "cpu_s": time.process_time(), "peak_bytes": peak_bytes()}
    print(json.dumps(found))


if __name__ == "__main__":
    main()
