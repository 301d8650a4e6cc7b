"""What the runtime costs beyond torch's own computing: two stages on loopback, and one stage beside a plain loop.

Two stages: real stage processes, made by fork; this process is their driver. Each stage's own ledger says how long
its thread computed, how long computations were handed over between its threads, and how long it waited for messages.
What is not computing, at the stage that waits least, is the overhead. One stage: the same micro-batches by a plain
PyTorch loop and by the stage's runtime, in blocks that take turns in one process.
"""

import statistics
import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from itertools import count
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional

from cluster_planner import Fleet, Node, make_plan
from experiments.harness.report import Cell, Claim, Part, Table
from experiments.pipeline.forked import StageRow, measure
from experiments.pipeline.overhead_model import MICRO_BATCH
from ravnest.driver.preparation import needed
from ravnest.driver.stage_setups import stage_setups
from ravnest.job.config import Job, job_from_mapping
from ravnest.job.initial_weights import make_weights
from ravnest.job.materials import capture_job, load_data, make_model, search_dirs
from ravnest.pipeline import Compute
from ravnest.planning.workload import workload
from ravnest.stage import messages as m
from ravnest.stage.assembling import assemble, batch_source
from ravnest.stage.executor import ThreadExecutor
from ravnest.stage.setup import StageSetup
from ravnest.training.batches import fetch
from ravnest.training.sampler import Sampler
from ring_allreduce.transport import Lane, ZmqEndpoint

UPDATE_EVERY = 8
MOST_MS, MOST_RATIO = 1.0, 1.03
_HERE = Path(__file__)
_TOKEN = b"overhead-" + b"0" * 7
_DEADLINE_S = 120.0


@dataclass(frozen=True)
class LoopRow:
    """One stage beside a plain loop: medians over blocks, ms per micro-batch, and the ratio of the medians."""

    plain_ms: float
    stage_ms: float
    ratio: float


def overhead_job() -> Job:
    return job_from_mapping(
        {
            "model": {"factory": "overhead_model:perceptron"},
            "data": {"factory": "overhead_model:noise"},
            "micro_batch": MICRO_BATCH,
            "update_every": UPDATE_EVERY,
            "optimizer": {"name": "sgd", "lr": 1e-3},
            "average_every": 10**9,
            "evaluate_every": 10**9,
            "stop": {"samples": 10**9},
        }
    )


def setups_for(stages: int) -> tuple[Job, dict[str, StageSetup], dict[str, Tensor]]:
    """One cluster of so many equal nodes; its stages' setups by name, and the model's weights."""
    job = overhead_job()
    captured = capture_job(job, _HERE, load_data(job, _HERE))
    nodes = tuple(
        Node(name=f"n{i}", flops_per_s=2e10, memory_bytes=8 * 10**9, up_bytes_per_s=1e9, down_bytes_per_s=1e9)
        for i in range(stages)
    )
    plan = make_plan(
        Fleet(nodes, (), ()),
        captured.costs,
        workload(job),
        job=job.model_dump(mode="json"),
        job_file=str(_HERE),
        min_stages=stages,
    )
    setups = stage_setups(
        plan,
        job,
        captured,
        search_dirs=search_dirs(_HERE),
        threads={node.name: 1 for node in nodes},
        total_samples=None,
        token=_TOKEN,
    )
    assert len(setups) == stages
    return job, setups, make_weights(job, _HERE)


def two_stages(updates: int = 30, warm_up: int = 8) -> list[StageRow]:
    """Two processes; the figures are of the `updates` after the first `warm_up`."""
    _, setups, weights = setups_for(2)
    return measure(setups, weights, warm_up=warm_up, updates=updates, limit_s=_DEADLINE_S)


def one_stage(blocks: int = 9, updates: int = 4) -> LoopRow:
    """Blocks of `updates` by the plain loop and by the stage, in turns; the first block of each does not count."""
    torch.set_num_threads(1)
    job, setups, weights = setups_for(1)
    ((name, setup),) = setups.items()
    driver = ZmqEndpoint(m.DRIVER, codec=m.codec(), token=_TOKEN)
    endpoint = ZmqEndpoint(name, codec=m.codec(), token=_TOKEN)
    executor = _Gated(endpoint.wake, prepare=lambda: torch.set_num_threads(1))
    try:
        driver.connect({name: endpoint.address})
        endpoint.connect({m.DRIVER: driver.address})
        state = {one: weights[one] for one in needed(setup)}
        stage = assemble(setup, endpoint, executor, batch_source(setup), state, {}, 0)
        plain = _PlainLoop(job, weights)
        driver.send(name, Lane.PIPELINE, m.Go())
        done = 0
        plain_ms, stage_ms = [], []
        for _ in range(blocks + 1):
            driver.send(name, Lane.PIPELINE, m.Alive())
            began_s = time.perf_counter()
            plain.run(updates)
            plain_ms.append(1e3 * (time.perf_counter() - began_s) / (updates * UPDATE_EVERY))
            began_s = time.perf_counter()
            done += updates
            executor.gate.set()
            while stage.computations < done * (2 * UPDATE_EVERY + 1):
                stage.turn(0.25)
            executor.gate.clear()
            stage_ms.append(1e3 * (time.perf_counter() - began_s) / (updates * UPDATE_EVERY))
            driver.poll(0.0)
            time.sleep(0.1)  # what the stage has begun of the next update ends: a fraction of a block is given to it
        plain_of, stage_of = statistics.median(plain_ms[1:]), statistics.median(stage_ms[1:])
        return LoopRow(plain_of, stage_of, stage_of / plain_of)
    finally:
        executor.gate.set()
        executor.close(5.0)
        endpoint.close()
        driver.close()


class _Gated(ThreadExecutor):
    """Computes while the gate is open: between its blocks the stage rests."""

    def __init__(self, wake: Callable[[], None], prepare: Callable[[], None]) -> None:
        super().__init__(wake, prepare)
        self.gate = threading.Event()

    def submit(self, instruction: Compute, work: Callable[[], Any]) -> None:
        def gated() -> Any:
            self.gate.wait(_DEADLINE_S)
            return work()

        super().submit(instruction, gated)


class _PlainLoop:
    """Ordinary PyTorch training on the same micro-batches."""

    def __init__(self, job: Job, weights: Mapping[str, Tensor]) -> None:
        self._model: Any = make_model(job, _HERE)
        self._model.load_state_dict(weights)
        self._data = load_data(job, _HERE)
        self._sampler = Sampler(len(self._data.train), job.seed, (0.0, 1.0), job.micro_batch)
        self._optimizer = torch.optim.SGD(self._model.parameters(), lr=job.optimizer.lr)
        self._next = count()

    def run(self, updates: int) -> None:
        for _ in range(updates):
            for _ in range(UPDATE_EVERY):
                inputs, target = fetch(self._data.train, self._sampler.batch(next(self._next)))
                loss = functional.cross_entropy(self._model(*inputs), target)
                loss.item()
                (loss / UPDATE_EVERY).backward()  # type: ignore[no-untyped-call]
            self._optimizer.step()
            self._optimizer.zero_grad()


def run(*, quick: bool) -> Part:
    """Measure, and judge."""
    stages = two_stages(2, 1) if quick else two_stages()
    loop = one_stage(1, 1) if quick else one_stage()
    waits_least = min(stages, key=lambda stage: stage.waiting_ms)
    beyond_ms = waits_least.wall_ms - waits_least.compute_ms
    claims = [
        Claim(
            "overhead",
            "beyond torch's own computing, per micro-batch of 1 MiB activations, at the stage that waits least",
            f"< {MOST_MS:g} ms",
            f"{beyond_ms:.2f} ms",
            beyond_ms < MOST_MS,
        ),
        Claim(
            "one stage",
            "time of one stage over that of a plain PyTorch loop",
            f"<= {MOST_RATIO}×",
            f"{loop.ratio:.3f}×",
            loop.ratio <= MOST_RATIO,
        ),
    ]
    rows: list[list[Cell]] = [
        [each.stage, *(round(ms, 2) for ms in (each.wall_ms, each.compute_ms, each.handoff_ms, each.waiting_ms))]
        for each in stages
    ]
    rows.append(["one stage alone", round(loop.stage_ms, 2), None, None, None])
    rows.append(["plain loop", round(loop.plain_ms, 2), None, None, None])
    columns = ["what", "ms a micro-batch", "computing", "handing over", "waiting"]
    return Part("overhead", "What the runtime costs", claims, [Table("Per micro-batch", columns, rows)])
