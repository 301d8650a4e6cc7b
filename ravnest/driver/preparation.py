"""What is known of a run before its stages train: its inputs, and the state that each stage starts from.

In: a plan, the run's folder, and whether the run is resumed. Out: a `Prepared`, with the job, its data and the captured
model, and then a `StageState` for each stage: the initial weights of a new run, or the last checkpoint of a resumed
one. A resume takes every cluster back to the anchor of the checkpoint's round; progress that was pending then is
dropped. `prepare` starts nothing and writes nothing, so that all mistakes in a user's input are told before the run
begins.
"""

import json
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from torch import Tensor

from cluster_planner import Plan
from ravnest.checkpoints.checkpoint import Checkpoint, CheckpointWriter, open_latest
from ravnest.checkpoints.run_folder import RunFolder, choose_folder
from ravnest.driver import control as c
from ravnest.driver.checkpoint_collector import parts_of_plan, parts_of_stages
from ravnest.driver.observe import report
from ravnest.driver.stage_setups import check_fingerprint
from ravnest.errors import InvalidInput
from ravnest.job.config import Job, differs, job_from_mapping
from ravnest.job.materials import capture_job, check_shares, load_data, make_buffers, make_weights, total_samples
from ravnest.job.pretrained import PretrainedWeights, pretrained_weights
from ravnest.planning.workload import check_workload
from ravnest.splitting import CapturedModel
from ravnest.stage import messages as m
from ravnest.stage.setup import StageSetup
from ring_allreduce.transport import Endpoint, Lane, Outbox

_ONCE_UNSAID = {"job.averaging.outer": "none", "job.tied": "exact"}
"""What older checkpoints were made with, whose manifests do not say it."""

_READABLE = 100  # the characters that two values in a message may have together


@dataclass(frozen=True)
class ResumedRun:
    """How far a run has come, by its last checkpoint. `updates` are by cluster."""

    checkpoint: Checkpoint
    samples: int
    rounds: int
    updates: Mapping[str, int]

    @classmethod
    def load(cls, folder: RunFolder, plan: Plan, job: Job) -> "ResumedRun":
        """Open the latest checkpoint of a run. Raises InvalidInput when it is damaged, lacks a part, or does not
        fit the plan and the job."""
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
    """By key, what must be equal for a checkpoint to fit a plan and a job. Learning rates, schedules, clipping, rounds
    and the end of the job may change."""
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


@dataclass(frozen=True)
class Prepared:
    """A run that is ready to start: its plan, its job and its data, the captured model, and where it goes on."""

    plan: Plan
    plan_path: Path
    job: Job
    data: Any
    captured: CapturedModel
    folder: RunFolder
    resumed: ResumedRun | None
    pretrained: PretrainedWeights | None
    """The weights that a new run starts from, where its job names some."""
    total_samples: int | None
    """Samples of the fleet at which the run ends; None when it ends by time."""

    @property
    def rounds_before(self) -> int:
        """Rounds of the sessions before this one; 0 for a new run."""
        return 0 if self.resumed is None else self.resumed.rounds


def prepare(plan: Plan, plan_path: Path, out_dir: Path | None, *, resume: bool, observer: report.Observer) -> Prepared:
    """Read and check everything that a run needs. Nothing is written.

    Raises InvalidInput where the plan, the job, the user's code, the data or the checkpoint do not fit together, or
    where a resumed run has nothing left to do.
    """
    job = job_from_mapping(plan.job, path=str(plan_path), under="job.")
    check_workload(plan, job, plan_path)
    folder = choose_folder(out_dir, resume=resume)
    resumed = ResumedRun.load(folder, plan, job) if resume else None
    if differs(job, plan.job_file):
        observer.on(
            report.NoticeEvent(f"{plan.job_file} has changed since the plan was made: the job in the plan counts")
        )
    if not Path(plan.job_file).parent.is_dir():
        raise InvalidInput(
            f"the job's folder {Path(plan.job_file).parent} is gone: plan again where the job lies now",
            path=str(plan_path),
            key="job_file",
        )
    observer.on(report.PhaseEvent("preparing", "reading the data and capturing the model"))
    data = load_data(job, plan.job_file)
    captured = capture_job(job, plan.job_file, data)
    check_fingerprint(plan, captured, plan_path)
    pretrained = None if resume else pretrained_weights(job, plan.job_file, captured)
    total = total_samples(job, len(data.train), plan.job_file)
    check_shares(job, plan.job_file, plan, len(data.train))
    if resumed is not None and total is not None and resumed.samples >= total:
        raise InvalidInput(
            f"the run has made {resumed.samples} of {total} samples: nothing is left to do; plan again with a later"
            " `stop` to go on",
            path=str(folder.path),
        )
    return Prepared(plan, plan_path, job, data, captured, folder, resumed, pretrained, total)


def check_same_data(
    prepared: Prepared, samples: Mapping[str, tuple[int, int] | None], nodes: Mapping[str, str]
) -> None:
    """Raises InvalidInput where a stage reads another number of samples than this process: stages would then take
    different samples for the same one.

    `samples` gives by stage the numbers of training and held-out samples, and `nodes` the node that it runs on.
    """
    here = (len(prepared.data.train), len(prepared.data.held_out))
    for stage, found in samples.items():
        if found is not None and found != here:
            raise InvalidInput(
                f"{nodes[stage]!r} reads {found[0]:,} training and {found[1]:,} held-out samples, and this machine"
                f" {here[0]:,} and {here[1]:,}: all must read the same data (`data` of that node in nodes.yaml)",
                path=str(prepared.plan_path),
                key=f"nodes.{nodes[stage]}.data",
            )


@dataclass(frozen=True)
class StageState:
    """What one stage starts from.

    `weights` are by original name. `optimizer` is by (parameter name, state key), and empty when a run first starts.
    `version` is the number of updates that the stage has made.
    """

    weights: Mapping[str, Tensor]
    optimizer: Mapping[tuple[str, str], Tensor]
    version: int


def needed(setup: StageSetup) -> list[str]:
    """The original names of a stage's weights and buffers, with those that it borrows."""
    return [spec.name for spec in setup.program.weight_specs]


def hand_out(
    outbox: Outbox, endpoint: Endpoint, setups: Iterable[StageSetup], states: Mapping[str, StageState]
) -> None:
    """Queue the state of each stage, and tell each how many tensors to expect."""
    for setup in setups:
        state = states[setup.name]
        names = needed(setup)
        for name in names:
            outbox.put(setup.name, m.StateTensor(part="weight", name=name), [state.weights[name]])
        for (name, key), tensor in state.optimizer.items():
            outbox.put(setup.name, m.StateTensor(part="optimizer", name=name, key=key), [tensor])
        begin = m.Begin(tensors=len(names) + len(state.optimizer), version=state.version)
        endpoint.send(setup.name, Lane.PIPELINE, begin)


def states_for(
    setups: Mapping[str, StageSetup],
    plan: Plan,
    job: Job,
    resumed: ResumedRun | None,
    pretrained: Mapping[str, Tensor] | None = None,
) -> dict[str, StageState]:
    """The state that each stage starts from, by stage.

    A resumed run takes it from its checkpoint. A new one starts from the `pretrained` weights, or else from weights
    that are made with the job's seed. Raises InvalidInput where the checkpoint lacks something that these stages would
    have saved.
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
    """A function that opens the writer of one checkpoint. Rounds count on from the session that was resumed."""
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
