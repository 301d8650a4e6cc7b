"""`python -m experiments.large.one_plan`: makes one plan in this process, and prints what that took as JSON.

In: a configuration, a fleet of equal nodes, how much is to be checked, and whether the model is to be captured with its
weights in memory, as JSON on the standard input. Out: on the last line of the standard output, the seconds and the peak
memory, the model's units, and digests of what was captured and planned.
"""

import hashlib
import json
import sys
import tempfile
import time
import warnings
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from cluster_planner import Plan

CODE = """
from types import SimpleNamespace
import torch
from torch.utils.data import TensorDataset

def with_values(config):
    # The model that `huggingface` makes. What reads a value cannot be built on the meta device.
    from ravnest.splitting import build_model
    model = build_model({"huggingface": config}, torch.get_default_device(), resolve=None)
    next(model.parameters()).sum().item()
    return model

def tokens(vocabulary, length):
    ids = torch.arange(64 * (length + 1)).view(64, length + 1) % vocabulary
    part = TensorDataset(ids[:, :-1].contiguous(), ids[:, 1:].contiguous())
    return SimpleNamespace(train=part, held_out=part)
"""
LENGTH = 64
"""Tokens of a sample."""
WITH_VALUES = "was captured with its weights in memory"
"""What planning warns of then."""


def planned(
    config: dict[str, Any], nodes: int, memory_gb: float, check: str, folder: Path, values: bool = False
) -> dict[str, Any]:
    """Plan the model of a configuration for so many equal nodes. `values`: with all weights in memory on the CPU.

    Raises InvalidInput where that is refused.
    """
    import ravnest
    from cluster_planner import Fleet, Node, save_plan

    (folder / "tokens.py").write_text(CODE)
    job = {
        "model": {"factory": "tokens:with_values", "args": {"config": config}} if values else {"huggingface": config},
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
    said: list[str] = []
    plan = ravnest.plan(
        fleet,
        folder / "job.yaml",
        check=check,
        cache=False,
        min_stages=2,
        progress=lambda words: steps.append((words, time.monotonic(), time.process_time())),
        warn=said.append,
    )
    save_plan(plan, folder / "plan.yaml")
    ends = [*steps[1:], ("", time.monotonic(), time.process_time())]
    return {
        "units": len(plan.costs.units),
        "largest_unit_bytes": max(unit.parameter_bytes for unit in plan.costs.units),
        "parameter_bytes": sum(unit.parameter_bytes for unit in plan.costs.units),
        "stages": sum(len(cluster.stages) for cluster in plan.clusters),
        "with_values": any(WITH_VALUES in words for words in said),
        "digests": digests_of(plan, folder),
        "plan_bytes": (folder / "plan.yaml").stat().st_size,
        "steps": {
            words: {"s": end_s - begin_s, "cpu_s": end_cpu_s - begin_cpu_s}
            for (words, begin_s, begin_cpu_s), (_, end_s, end_cpu_s) in zip(steps, ends, strict=True)
        },
    }


def digests_of(plan: "Plan", folder: Path) -> dict[str, str]:
    """Digests of the units' costs, the cuts, and all that the plan says beside its job and the graphs' fingerprint.

    Graphs differ in what changes no number: attention on the meta device gives its result in another order in memory
    than the processor's kernel, and so a `contiguous`, which copies nothing there, stays in the graph.
    """
    from cluster_planner import save_plan

    alone = replace(plan, job={}, job_file="", costs=replace(plan.costs, fingerprint=""))
    save_plan(alone, folder / "alone.yaml")
    texts = {
        "costs": repr(plan.costs.units),
        "cuts": repr([(cluster.name, cluster.stages) for cluster in plan.clusters]),
        "plan": (folder / "alone.yaml").read_text(),
    }
    return {name: hashlib.sha256(text.encode()).hexdigest() for name, text in texts.items()}


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
