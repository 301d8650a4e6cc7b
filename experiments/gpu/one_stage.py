"""A GPT on one GPU: profiled, planned and run by ravnest's own commands, beside a plain loop of torch.

The loop takes the same model, batch, precision, clipping and AdamW, in torch's fused form, and its batches are on the
GPU before it begins. Of both the time counts once kernels are loaded. The memory is what is taken of the card while the
stage trains, by the driver's count; what this process has there is taken before and stays.
"""

import json
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch.nn import functional

from cluster_planner import load_plan
from experiments.harness.report import ROOT, Claim, Panel, Part, Series, Table
from ravnest.job.config import load_job
from ravnest.job.materials import load_data, make_model
from ravnest.training.batches import fetch

CLI = "from ravnest.cli.main import main; main()"
LIMIT_S = 240.0
CPU = torch.device("cpu")
FAST_ENOUGH, NEAR = 0.9, 0.1
WARM_UP = 10


@dataclass(frozen=True)
class Size:
    """A GPT and how long it is trained."""

    layers: int
    width: int
    heads: int
    context: int
    micro_batch: int
    samples: int

    @property
    def job(self) -> dict[str, Any]:
        """The job.yaml: factories are those of examples/home, which are copied beside it."""
        sizes = {"layers": self.layers, "width": self.width, "heads": self.heads, "context": self.context}
        return {
            "model": {"factory": "model:gpt", "args": {"vocab": VOCAB, **sizes}},
            "data": {"factory": "data:pydoc_text", "args": {"context": self.context}},
            "loss": "cross_entropy",
            "precision": "bfloat16",
            "micro_batch": self.micro_batch,
            "update_every": UPDATE_EVERY,
            "optimizer": {"name": "adamw", "lr": LR, "clip_norm": CLIP},
            "average_every": max(4096, self.micro_batch * UPDATE_EVERY),
            "stop": {"samples": self.samples},
            "evaluate_every": 10**9,
        }


UPDATE_EVERY, LR, CLIP = 2, 3e-4, 1.0
VOCAB = 97
"""Of examples/home."""
WHOLE = Size(layers=12, width=768, heads=12, context=256, micro_batch=16, samples=12_288)
QUICK = Size(layers=2, width=32, heads=2, context=32, micro_batch=4, samples=64)


@dataclass(frozen=True)
class Found:
    """Samples per second and bytes, of a plain loop, as planned, and as run."""

    device: str
    plain: float
    planned: float
    run: float
    compute: float
    """The part of the stage's time, in steady state, in which it computed."""
    averaging: float
    planned_bytes: int
    taken_bytes: int | None


def run(*, quick: bool) -> Part:
    """Measure and judge. Raises RuntimeError where there is no CUDA device, but for --quick."""
    if not quick and not torch.cuda.is_available():
        raise RuntimeError("experiments.gpu needs a CUDA device, and torch finds none on this machine")
    return judge(measure(QUICK if quick else WHOLE))


def judge(found: Found) -> Part:
    """Set what was measured beside what was predicted."""
    whole, off = found.run / found.plain, found.run / found.planned - 1
    claims = [
        Claim(
            "as fast as a plain loop",
            "samples/s of one stage through Ray over those of the plain loop",
            f">= {FAST_ENOUGH}×",
            f"{whole:.2f}×",
            whole >= FAST_ENOUGH,
        ),
        Claim(
            "as planned",
            "samples/s of the run beside those of the plan from `ravnest profile`",
            f"within {NEAR:.0%}",
            f"{off:+.1%}",
            abs(off) <= NEAR,
        ),
        Claim(
            "within its memory",
            "the most that was taken of the card over what the plan counts with",
            "<= 1×",
            "no GPU" if found.taken_bytes is None else f"{found.taken_bytes / found.planned_bytes:.2f}×",
            None if found.taken_bytes is None else found.taken_bytes <= found.planned_bytes,
        ),
    ]
    rows: list[list[str | float | None]] = [
        ["plain loop of torch", round(found.plain, 1), None, None, None],
        ["planned", round(found.planned, 1), None, None, _gb(found.planned_bytes)],
        ["run", round(found.run, 1), f"{found.compute:.1%}", f"{found.averaging:.1%}", _gb(found.taken_bytes)],
    ]
    columns = ["what", "samples/s", "computing", "averaging", "memory, GB"]
    return Part(
        "one_stage",
        "One stage on one device",
        claims,
        [Table("A GPT in bfloat16", columns, rows)],
        [
            Panel(
                f"A GPT in bfloat16 on {found.device}",
                "",
                "samples/s",
                [Series("one stage", ["plain loop", "planned", "run"], [found.plain, found.planned, found.run])],
            )
        ],
        notes=[f"Device: {found.device}. torch {torch.__version__}."],
    )


def _gb(count: int | None) -> float | None:
    return None if count is None else round(count / 1e9, 2)


def measure(size: Size) -> Found:
    """Profile, plan, run, and the plain loop. Raises RuntimeError where a command fails."""
    device = torch.device("cuda:0") if torch.cuda.is_available() else CPU
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        for module in ("model.py", "data.py"):
            shutil.copy(ROOT / "examples" / "home" / module, folder)
        (folder / "job.yaml").write_text(json.dumps(size.job), encoding="utf-8")  # JSON is YAML
        plain = plain_loop(folder / "job.yaml", size, device)
        if device != CPU:
            torch.cuda.empty_cache()
        nodes, plan = str(folder / "nodes.yaml"), str(folder / "plan.yaml")
        _command(device, "profile", "--job", str(folder / "job.yaml"), "-o", nodes, "--seconds", "1")
        planned, _ = _command(device, "plan", nodes, "-o", plan, "--check", "none")
        summary, taken = _command(device, "run", plan, "--out", str(folder / "run"))
        beyond = load_plan(plan).fleet.nodes[0].beyond_bytes  # of a process on a card
    (stage,) = planned["predicted"]["clusters"][0]["stages"]
    (steady,) = (each["steady"] for each in summary["stages"])
    return Found(
        device="the processor" if device == CPU else torch.cuda.get_device_name(device),
        plain=plain,
        planned=planned["predicted"]["samples_per_s"],
        run=size.micro_batch / summary["stages"][0]["step_s"],
        compute=steady["compute"],
        averaging=steady["averaging"],
        planned_bytes=stage["memory_bytes"] + beyond,
        taken_bytes=taken,
    )


def plain_loop(job_file: Path, size: Size, device: torch.device) -> float:
    """Samples per second of ordinary training on the device."""
    torch.manual_seed(0)
    job = load_job(job_file)
    model: Any = make_model(job, job_file).to(device)
    optimizer = torch.optim.AdamW(model.parameters(), lr=LR, fused=device != CPU)
    data = load_data(job, job_file).train
    batches = []
    for begin in range(0, UPDATE_EVERY * size.micro_batch, size.micro_batch):
        (inputs,), target = fetch(data, range(begin, begin + size.micro_batch))
        assert isinstance(target, torch.Tensor)
        batches.append((inputs.to(device), target.to(device)))
    updates = max(WARM_UP + 2, size.samples // 2 // (UPDATE_EVERY * size.micro_batch))
    began_s = 0.0
    for update in range(updates):
        if update == WARM_UP:
            _settle(device)
            began_s = time.perf_counter()
        for batch, target in batches:
            with torch.autocast(device.type, torch.bfloat16):
                logits = model(batch)
            loss = functional.cross_entropy(logits.float().flatten(0, 1), target.flatten())
            (loss / UPDATE_EVERY).backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), CLIP)
        optimizer.step()
        optimizer.zero_grad()
    _settle(device)
    return (updates - WARM_UP) * UPDATE_EVERY * size.micro_batch / (time.perf_counter() - began_s)


def _settle(device: torch.device) -> None:
    if device != CPU:
        torch.cuda.synchronize(device)


def _command(device: torch.device, *words: str) -> tuple[Mapping[str, Any], int | None]:
    """Run one of ravnest's commands. Returns what it prints as JSON, and the most that it took of the card's memory."""
    before = None if device == CPU else torch.cuda.mem_get_info(device)[0]
    most = 0
    with tempfile.TemporaryFile("w+") as out, tempfile.TemporaryFile("w+") as said:
        command = [sys.executable, "-c", CLI, *words, "--json"]
        with subprocess.Popen(command, stdout=out, stderr=said, cwd=ROOT) as running:
            deadline_s = time.monotonic() + LIMIT_S
            while running.poll() is None:
                if time.monotonic() > deadline_s:
                    running.terminate()
                if before is not None:
                    most = max(most, before - torch.cuda.mem_get_info(device)[0])
                time.sleep(0.05)
        for stream in (out, said):
            stream.seek(0)
        if running.returncode:
            raise RuntimeError(f"ravnest {words[0]} ended with {running.returncode}: {said.read()[-2000:]}")
        return json.loads(out.read()), None if before is None else most
