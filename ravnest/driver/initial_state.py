"""Where each stage starts: the initial weights of a new run, or the last checkpoint of a resumed one.

Decides that a resume takes every cluster back to the anchor of the checkpoint's round: what was pending then is
dropped (design §7). Reads a checkpoint lazily, stage by stage.
"""

import json
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass

from torch import Tensor

from cluster_planner import Plan
from ravnest.checkpoints.checkpoint import Checkpoint, CheckpointWriter, open_latest
from ravnest.checkpoints.run_folder import RunFolder
from ravnest.driver import control as c
from ravnest.driver.checkpoint_collector import parts_of_plan, parts_of_stages
from ravnest.errors import InvalidInput
from ravnest.job.config import Job
from ravnest.job.materials import make_buffers, make_weights
from ravnest.stage import messages as m
from ravnest.stage.setup import StageSetup
from ring_allreduce.transport import Endpoint, Lane, Outbox


@dataclass(frozen=True)
class StageState:
    """Where one stage starts. `optimizer`: (parameter name, state key) → tensor; empty at a run's first start."""

    weights: Mapping[str, Tensor]
    optimizer: Mapping[tuple[str, str], Tensor]
    version: int


def needed(setup: StageSetup) -> list[str]:
    """The weights and buffers of a stage, borrowed ones included, by original name."""
    return [spec.name for spec in setup.program.weight_specs]


def hand_out(
    outbox: Outbox, endpoint: Endpoint, setups: Iterable[StageSetup], states: Mapping[str, StageState]
) -> None:
    """Queue each stage's state, and tell it how much to expect."""
    for setup in setups:
        state = states[setup.name]
        names = needed(setup)
        for name in names:
            outbox.put(setup.name, m.StateTensor(part="weight", name=name), [state.weights[name]])
        for (name, key), tensor in state.optimizer.items():
            outbox.put(setup.name, m.StateTensor(part="optimizer", name=name, key=key), [tensor])
        begin = m.Begin(tensors=len(names) + len(state.optimizer), version=state.version)
        endpoint.send(setup.name, Lane.PIPELINE, begin)


_ONCE_UNSAID = {"job.averaging.outer": "none", "job.tied": "exact"}
"""What checkpoints were made with before their manifests said it."""

_READABLE = 100  # characters of two values that a message can hold


@dataclass(frozen=True)
class ResumedRun:
    """What is known of the run so far."""

    checkpoint: Checkpoint
    samples: int
    rounds: int
    updates: Mapping[str, int]

    @classmethod
    def load(cls, folder: RunFolder, plan: Plan, job: Job) -> "ResumedRun":
        """The latest checkpoint. Raises InvalidInput when it is damaged, lacks a part, or is of a plan that it does not
        fit."""
        parts = parts_of_plan(plan)
        checkpoint = open_latest(folder.checkpoints, parts)
        manifest = checkpoint.manifest
        for key, value in made_with(plan, job).items():
            before = manifest.made_with.get(key, _ONCE_UNSAID.get(key))
            if before != value:
                raise InvalidInput(
                    f"the checkpoint was made with another one{_both(before, value)}: resume with the plan.yaml in the"
                    " run's folder, or start a new run",
                    path=str(folder.path),
                    key=key,
                )
        checkpoint.require(parts)  # now that it is known to be of this plan
        return cls(checkpoint, manifest.samples, manifest.round, manifest.versions)


def made_with(plan: Plan, job: Job) -> dict[str, str]:
    """What must be equal for a checkpoint to fit, by key. Rates, schedules, clipping, rounds and the end may change."""
    spans = [[cluster.name, *(stage.units for stage in cluster.stages)] for cluster in plan.clusters]
    return {
        "model": plan.costs.fingerprint,
        "clusters": json.dumps(spans),
        "shares": json.dumps([plan.share(cluster.name) for cluster in plan.clusters]),
        "job.data": job.data.model_dump_json(),
        "job.micro_batch": str(job.micro_batch),
        "job.update_every": str(job.update_every),
        "job.optimizer": json.dumps({"name": job.optimizer.name, **job.optimizer.arguments}, sort_keys=True),
        "job.averaging.outer": job.averaging.outer_name,
        "job.tied": job.tied,
        "job.seed": str(job.seed),
    }


def _both(before: str | None, now: str) -> str:
    short = before is not None and len(before) + len(now) < _READABLE
    return f" ({before}, now {now})" if short else ""


def states_for(
    setups: Mapping[str, StageSetup],
    plan: Plan,
    job: Job,
    resumed: ResumedRun | None,
    pretrained: Mapping[str, Tensor] | None = None,
) -> dict[str, StageState]:
    """Each stage's start. `pretrained`: what a new run starts from instead of the seed.

    Raises InvalidInput where a checkpoint lacks something that these stages would have saved.
    """
    weights: Mapping[str, Tensor]
    if resumed is not None:
        weights = _resumed_weights(setups, plan, job, resumed)
    else:
        weights = make_weights(job, plan.job_file) if pretrained is None else pretrained
    return {
        stage: StageState(
            weights=weights,
            optimizer={} if resumed is None else resumed.checkpoint.optimizer(setup.cluster, setup.index),
            version=0 if resumed is None else resumed.updates[setup.cluster],
        )
        for stage, setup in setups.items()
    }


def _resumed_weights(setups: Mapping[str, StageSetup], plan: Plan, job: Job, resumed: ResumedRun) -> dict[str, Tensor]:
    checkpoint = resumed.checkpoint
    checkpoint.require(parts_of_stages(setups.values()))
    names = {name for setup in setups.values() for name in needed(setup)}
    saved = checkpoint.weights(names)
    missing = names - saved.keys()
    if not missing:
        return saved
    lost = sorted(missing & {name for setup in setups.values() for each in setup.segments for name in each.names})
    if lost:
        raise InvalidInput(f"the checkpoint is not complete: it lacks {', '.join(lost)}", path=str(checkpoint.folder))
    # Buffers that the model does not save (rotary frequencies) come from its construction even on a resume.
    return {**make_buffers(job, plan.job_file), **saved}


def writer_opener(
    folder: RunFolder, plan: Plan, job: Job, resumed: ResumedRun | None
) -> Callable[[c.BeginCheckpoint], CheckpointWriter]:
    """Opens the writer of one checkpoint. Rounds and updates count on from the session that was resumed."""
    rounds_before = 0 if resumed is None else resumed.rounds

    def begin(begun: c.BeginCheckpoint) -> CheckpointWriter:
        return CheckpointWriter(
            folder.checkpoints,
            round=rounds_before + begun.round,
            samples=begun.samples,
            versions=begun.updates,
            made_with=made_with(plan, job),
        )

    return begin
