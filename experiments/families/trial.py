"""One family: planned for two clusters, trained, reloaded strictly, and compared with plain PyTorch.

In: a `Family`, which is a job without its sizes. Out: an `Outcome`: what the run reported and what plain PyTorch makes
of it, or the message with which it was refused. Three comparisons are made:

- *reported*: the final weights are loaded strictly into a fresh model, whose held-out loss is that of the run;
- *exact*: a synchronous run with plain SGD ends with the mean of two plain loops, one for each cluster's samples;
- *learnt*: an asynchronous run with AdamW ends no higher than plain loops with the samples of both clusters in each
  update, by more than these differ among themselves by their seeds. The run has their rate times √k with k clusters,
  as docs/training.md says; part `quality` shows why.

The plain loops take from ravnest the initial weights and the batches of samples, and nothing else.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

from cluster_planner import Constraints, Fleet, Node, Pin, Plan, make_plan
from ravnest.driver.in_process import LocalRun
from ravnest.driver.preparation import StageState
from ravnest.driver.session import run_control
from ravnest.driver.stage_setups import stage_setups
from ravnest.errors import RavnestError
from ravnest.job.config import Job, job_from_mapping
from ravnest.job.initial_weights import make_weights
from ravnest.job.materials import JobData, capture_job, load_data, make_model, search_dirs
from ravnest.planning.prepare_plan import prepare_plan
from ravnest.planning.workload import evaluation_batch, workload
from ravnest.splitting import CapturedModel
from ravnest.training.batches import arguments
from ravnest.training.sampler import EvaluationBatches, Sampler

MICRO_BATCH, UPDATE_EVERY = 8, 2
SPEEDS = ((1e9, 3e9), (3e9, 1e9))
"""FLOP/s of the nodes of each cluster: the second one is cut elsewhere."""
CLUSTERS = len(SPEEDS)
UPDATE_SAMPLES = MICRO_BATCH * UPDATE_EVERY * CLUSTERS
"""Of one update of all clusters together."""
EXACT_UPDATES = 3
ROUND_UPDATES = 2
"""Updates of each cluster between two rounds of averaging."""
IGNORED = -100
SEEDS = (3, 4, 5, 6, 7)
"""Of the plain loops: of weights, order and draws. The run has the first."""
RULE = math.sqrt(CLUSTERS)
"""The rate of a run with an adaptive optimizer, over that of a plain loop with as many samples an update."""
LOSS = "loss."
"""With this the names of a loss's parameters begin."""

Measure = Callable[[Any, Any], Tensor]


def logits_of(output: Any) -> Tensor:
    """The tensor that a named loss takes of what a model returns."""
    if isinstance(output, Tensor):
        return output
    found: Tensor = output["logits"] if isinstance(output, Mapping) else output.logits
    return found


def cross_entropy() -> Measure:
    """torch's, of (B, C), (B, C, …) or, for whole sequences, (B, T, C)."""

    def measure(output: Any, target: Tensor) -> Tensor:
        logits = logits_of(output)
        if logits.dim() == 3 and target.shape == logits.shape[:2]:
            return functional.cross_entropy(logits.flatten(0, 1), target.flatten())
        return functional.cross_entropy(logits, target)

    return measure


def mse() -> Measure:
    """torch's."""
    return lambda output, target: functional.mse_loss(logits_of(output), target)


@dataclass(frozen=True)
class Family:
    """A model and its data, as a job names them. `job`: further keys of the job."""

    name: str
    model: Mapping[str, object]
    data: Mapping[str, object]
    job: Mapping[str, object] = field(default_factory=dict)
    loss: Callable[[], Measure] = cross_entropy
    """Makes, for the plain loops, what the job's `loss` says."""
    draws: bool = False
    """Its forward draws random numbers, so that no plain loop has the same ones."""
    refused: str = ""
    """It has to be refused, with these words."""
    updates: int = 80
    lr: float = 3e-3


@dataclass(frozen=True)
class Outcome:
    """What came of a family. Losses are held-out ones."""

    refused: str = ""
    """The message with which planning refused it."""
    failed: str = ""
    """What else was raised, which is a defect."""
    units: int = 0
    stages: tuple[int, ...] = ()
    """Of each cluster."""
    initial: float = math.nan
    reported: float = math.nan
    recomputed: float = math.nan
    plain: tuple[float, ...] = ()
    """Of one plain loop for each of the seeds."""
    exact: float | None = None
    """The largest error of a weight after the synchronous run, over the largest change of one."""
    warnings: tuple[str, ...] = ()
    seconds: float = 0.0


def job_of(family: Family, *, exact: bool = False, **changes: Any) -> Job:
    """The family's job, as a user would write it; with `exact`, that of the exact comparison."""
    given: Any = family.job.get("optimizer", {})
    job: dict[str, Any] = {
        "model": family.model,
        "data": family.data,
        "micro_batch": MICRO_BATCH,
        "update_every": UPDATE_EVERY,
        "average_every": 10**6 if exact else ROUND_UPDATES * UPDATE_SAMPLES,
        "evaluate_every": 10**6,
        "stop": {"samples": (EXACT_UPDATES if exact else family.updates) * UPDATE_SAMPLES},
        "seed": SEEDS[0],
        **family.job,
        "optimizer": {"name": "sgd", "lr": 0.05} if exact else {"name": "adamw", "lr": family.lr, **given},
    }
    return job_from_mapping({**job, **({"schedule": "1f1b"} if exact else {}), **changes})


def fleet(stages: int) -> Fleet:
    """Two clusters of so many nodes (at most two)."""
    named = {(cluster, index): f"n{cluster}{index}" for cluster in range(CLUSTERS) for index in range(stages)}
    nodes = tuple(
        Node(
            name=name,
            flops_per_s=SPEEDS[cluster][index],
            memory_bytes=10**9,
            up_bytes_per_s=1e8,
            down_bytes_per_s=1e8,
        )
        for (cluster, index), name in named.items()
    )
    pins = tuple(Pin(name, f"c{cluster}", index) for (cluster, index), name in named.items())
    return Fleet(nodes, constraints=Constraints(min_clusters=CLUSTERS, pins=pins))


def tried(family: Family) -> Outcome:
    """Plan it, train it, and compare. Whatever is raised becomes part of the outcome."""
    began_s = time.monotonic()
    warnings: list[str] = []
    try:
        outcome = _compared(family, warnings.append)
    except Exception as error:  # noqa: BLE001 - one family's defect must not hide the others' results
        outcome = Outcome(failed=f"{type(error).__name__}: {' '.join(str(error).split())}")
    return replace(outcome, warnings=tuple(warnings), seconds=time.monotonic() - began_s)


def _compared(family: Family, warn: Callable[[str], None]) -> Outcome:
    try:
        job = job_of(replace(family, lr=RULE * family.lr))
        data = load_data(job, job.file)
        captured = capture_job(job, job.file, data)
        stages = min(2, len(captured.units))
        plan = prepare_plan(fleet(stages), job, min_stages=stages, step=lambda _: None, warn=warn).plan
    except RavnestError as error:
        return Outcome(refused=" ".join(str(error).split()))
    weights = every_name(captured, make_weights(job, job.file))
    run = trained(job, plan, captured, data, weights)
    judge = Judge(family, job, data, captured)
    return Outcome(
        units=len(captured.units),
        stages=tuple(len(cluster.stages) for cluster in plan.clusters),
        initial=judge.held_out_loss(weights),
        reported=run.reported,
        recomputed=judge.held_out_loss(run.weights),
        plain=tuple(judge.held_out_loss(_learnt_plainly(family, seed, captured)) for seed in SEEDS),
        exact=None if family.draws else exact_error(family, captured),
    )


def _learnt_plainly(family: Family, seed: int, captured: CapturedModel) -> dict[str, Tensor]:
    job = job_of(family, seed=seed)
    return after_plain_loop(family, job, load_data(job, job.file), every_name(captured, make_weights(job, job.file)))


@dataclass(frozen=True)
class Trained:
    """What a run ended with. `reported`: its held-out loss. `micro_batches`: how many each cluster trained on."""

    weights: Mapping[str, Tensor]
    reported: float
    micro_batches: Mapping[str, int]


def trained(job: Job, plan: Plan, captured: CapturedModel, data: JobData, weights: Mapping[str, Tensor]) -> Trained:
    """Train as the plan says, in this thread, to the job's end."""
    setups = stage_setups(
        plan,
        job,
        captured,
        search_dirs=search_dirs(job.file),
        threads={node.name: 1 for node in plan.fleet.nodes},
        total_samples=job.stop.samples,
        token=b"t" * 16,
    )
    states = {name: StageState(weights, {}, 0) for name in setups}
    control = run_control(plan, job, setups, len(data.held_out), job.stop.samples, None)
    result = LocalRun(setups, states, control, plan=plan).run()
    total, count = result.evaluations[-1].loss
    made = {cluster: len(losses) for cluster, losses in result.losses.items()}
    return Trained(every_name(captured, result.checkpoints[-1]), total / count, made)


def every_name(captured: CapturedModel, weights: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """The weights with all names of those that have several, as a file of weights has them.

    What forwards compute and keep as plain attributes (torch's old weight norm) is made with the weights, and left out.
    """
    known = {spec.name for spec in captured.span(0, len(captured.units)).weight_specs}
    aliases = {other: weights[name] for name, others in captured.aliases.items() for other in others}
    return {name: value for name, value in weights.items() if name in known} | aliases


def exact_error(family: Family, captured: CapturedModel) -> float:
    """How far a synchronous run with SGD ends from the mean of two plain loops, over how far a weight has moved."""
    job = job_of(family, exact=True)
    data = load_data(job, job.file)
    plan = quick_plan(job, captured)
    weights = every_name(captured, make_weights(job, job.file))
    run = trained(job, plan, captured, data, weights)
    ends, counts = [], []
    for cluster, count in run.micro_batches.items():
        ends.append(after_loop(family, job, data, weights, plan.share(cluster), count))
        counts.append(count // job.update_every)
    part = torch.tensor(counts, dtype=torch.double) / sum(counts)
    error = moved = 0.0
    for name in Plain(family, job, weights).trained:
        mean = torch.einsum("c,c...->...", part, torch.stack([end[name].double() for end in ends]))
        error = max(error, (run.weights[name].double() - mean).abs().max().item())
        moved = max(moved, (mean - weights[name].double()).abs().max().item())
    return error / moved


def quick_plan(job: Job, captured: CapturedModel) -> Plan:
    """The plan without the trials that precede and follow it."""
    stages = fleet(min(2, len(captured.units)))
    given = {"job": job.model_dump(mode="json"), "job_file": str(job.file), "min_stages": min(2, len(captured.units))}
    return make_plan(stages, captured.costs, workload(job), **given)


class Plain:
    """A fresh model and its loss with these weights, loaded strictly, and an optimizer of torch."""

    def __init__(self, family: Family, job: Job, weights: Mapping[str, Tensor]) -> None:
        self.model = make_model(job, job.file)
        self._saved = self.model.state_dict().keys()
        constants = {name for name, _ in self.model.named_buffers()} - self._saved
        own = {name: value for name, value in weights.items() if name not in constants and not name.startswith(LOSS)}
        self.model.load_state_dict(own)
        self.loss = family.loss()
        if isinstance(self.loss, nn.Module):
            of_loss = {name.removeprefix(LOSS): value for name, value in weights.items() if name.startswith(LOSS)}
            self.loss.load_state_dict(of_loss)
        self.optimizer = getattr(torch.optim, {"adamw": "AdamW", "sgd": "SGD"}[job.optimizer.name])(
            list(self._parameters().values()), lr=job.optimizer.lr
        )

    def mean(self, batch: tuple[Any, Any]) -> Tensor:
        """The loss of a batch."""
        args, kwargs = arguments(batch[0])
        return self.loss(self.model(*args, **kwargs), batch[1])

    def step(self) -> None:
        self.optimizer.step()
        self.optimizer.zero_grad()

    @property
    def trained(self) -> list[str]:
        """The names of what the optimizer trains."""
        return list(self._parameters())

    def state(self) -> dict[str, Tensor]:
        """All that is saved."""
        of_loss = self.loss.state_dict() if isinstance(self.loss, nn.Module) else {}
        return {**self.model.state_dict(), **{LOSS + name: value for name, value in of_loss.items()}}

    def _parameters(self) -> dict[str, nn.Parameter]:
        of_loss = self.loss.named_parameters() if isinstance(self.loss, nn.Module) else ()
        named = {**dict(self.model.named_parameters()), **{LOSS + name: value for name, value in of_loss}}
        return {name: value for name, value in named.items() if value.requires_grad}


def micro_batches(
    job: Job, data: JobData, share: tuple[float, float], size: int, count: int
) -> Iterator[tuple[Any, Any]]:
    """So many batches of so many samples of a share of the training set, in the run's order."""
    sampler = Sampler(len(data.train), job.seed, share, size)
    for k in range(count):
        yield data.train.batch(sampler.batch(k), sampler.epoch(k))


def after_loop(
    family: Family, job: Job, data: JobData, weights: Mapping[str, Tensor], share: tuple[float, float], count: int
) -> dict[str, Tensor]:
    """What a plain loop makes of the weights with `count` micro-batches of a share, `update_every` for each update."""
    plain = Plain(family, job, weights)
    for number, batch in enumerate(micro_batches(job, data, share, job.micro_batch, count)):
        (plain.mean(batch) / job.update_every).backward()
        if (number + 1) % job.update_every == 0:
            plain.step()
    return plain.state()


def after_plain_loop(family: Family, job: Job, data: JobData, weights: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """What an ordinary loop makes of the weights, with as many samples an update as all clusters have, in one batch."""
    plain = Plain(family, job, weights)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(job.seed)
        for batch in micro_batches(job, data, (0.0, 1.0), UPDATE_SAMPLES, family.updates):
            plain.mean(batch).backward()
            plain.step()
    return plain.state()


@dataclass(frozen=True)
class Judge:
    """Held-out losses in plain PyTorch."""

    family: Family
    job: Job
    data: JobData
    captured: CapturedModel

    def held_out_loss(self, weights: Mapping[str, Tensor]) -> float:
        """That of a fresh model with these weights, over the batches of the run's own evaluation."""
        plain = Plain(self.family, self.job, weights)
        plain.model.eval()
        spans: Sequence[range] = EvaluationBatches(
            len(self.data.held_out),
            evaluation_batch(self.job, self.captured),
            short_last=self.captured.batch_is_dynamic,
        )
        total = count = 0.0
        with torch.no_grad():
            for span in spans:
                batch = self.data.held_out.batch(span)
                counted = self._counted(batch[1], len(span))
                total += plain.mean(batch).item() * counted
                count += counted
        return total / count

    def _counted(self, target: Any, samples: int) -> int:
        """What a batch's loss is the mean over: torch's cross entropy leaves targets of -100 out."""
        return int((target != IGNORED).sum()) if self.family.loss is cross_entropy else samples
