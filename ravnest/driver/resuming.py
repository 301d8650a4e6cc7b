"""Where a resumed run goes on: its last checkpoint, checked against the plan and the job, and moved onto other stages.

In: the run's folder, the plan and the job. Out: a `ResumedRun`, and the weights and optimizer state of each stage. The
plan may be another than the one that the checkpoint was made with (other cuts, other clusters, other nodes): weights
and optimizer state are kept by the names of parameters, and go to whichever stages hold these parameters now.
"""

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path

from torch import Tensor

from cluster_planner import Plan
from ravnest.checkpoints.checkpoint import Checkpoint, open_latest
from ravnest.checkpoints.run_folder import RunFolder
from ravnest.checkpoints.weight_files import StoredTensors
from ravnest.driver.checkpoint_collector import parts_of_checkpoint, parts_of_stages
from ravnest.errors import InvalidInput
from ravnest.job.config import Job, OptimizerConfig
from ravnest.job.initial_weights import make_buffers
from ravnest.recovery import ADDED
from ravnest.stage.setup import StageSetup
from ravnest.training.averaging import OUTER_PREFIX
from ravnest.training.sampler import ORDER

_ONCE_UNSAID = {"job.averaging.outer": "none", "job.tied": "exact"}
"""What older checkpoints were made with, whose manifests do not say it."""

_READABLE = 100  # the characters that two values in a message may have together
_MOVABLE = ("clusters", "shares")
"""What may be another one when a run is resumed: then its state is moved onto the stages of the new plan."""


@dataclass(frozen=True)
class ResumedRun:
    """How far a run has come, by its last checkpoint. `updates` are by cluster of the plan that is resumed."""

    checkpoint: Checkpoint
    samples: int
    rounds: int
    updates: Mapping[str, int]
    unmade: Mapping[str, int] = field(default_factory=dict)
    """Of the updates of clusters that came during the run: those from which their schedules began."""
    moved: bool = False
    """Whether the checkpoint was made with other stages, or other shares of the data."""
    unsent: bool = False
    """Whether rounds leave much of what clusters have learned for later ones. No checkpoint has that."""

    @classmethod
    def load(cls, folder: RunFolder, plan: Plan, job: Job) -> "ResumedRun":
        """Open the latest checkpoint of a run. Raises InvalidInput when it is damaged, lacks a part, or does not
        fit the plan and the job.

        Onto other stages each cluster goes on at the update that it would have come to by the samples of the
        checkpoint and its share of them. So learning rates go on where they were, and so do the clusters' places in
        the epoch, but for some samples of this epoch that are read twice or not at all. Where the others are only
        clusters that have come or gone since, those of the plan go on exactly.
        """
        parts = partial(parts_of_checkpoint, plan=plan)
        checkpoint = open_latest(folder.checkpoints, parts)
        manifest = checkpoint.manifest
        differing = {
            key: value
            for key, value in made_with(plan, job).items()
            if manifest.made_with.get(key, _ONCE_UNSAID.get(key)) != value
        }
        for key, value in differing.items():
            if key not in _MOVABLE:
                before = manifest.made_with.get(key, _ONCE_UNSAID.get(key))
                raise InvalidInput(
                    f"the checkpoint was made with another one{_both(before, value)}: resume with the plan.yaml in the"
                    " run's folder, or start a new run",
                    path=str(folder.path),
                    key=key,
                )
        checkpoint.require(parts)  # now that it is known to be of this model and job
        unsent = job.averaging.wire == "sparse"
        if not differing:
            return cls(checkpoint, manifest.samples, manifest.round, manifest.versions, manifest.unmade, unsent=unsent)
        updates = {cluster.name: _updates_of(plan, job, cluster.name, manifest.samples) for cluster in plan.clusters}
        unmade: dict[str, int] = {}  # where all are given their share, together they made the samples
        if _same_but_for_comers(plan, manifest.made_with.get("clusters", "[]")):
            unmade = {name: n for name, n in updates.items() if name not in manifest.versions} | manifest.unmade
            updates |= {name: manifest.versions[name] for name in updates.keys() & manifest.versions.keys()}
        return cls(checkpoint, manifest.samples, manifest.round, updates, unmade, moved=True, unsent=unsent)

    @property
    def notices(self) -> list[str]:
        """What the user is to know of this resume, in sentences: first of all, what is resumed."""
        folder = self.checkpoint.folder
        what = f"resuming {folder.parent.parent} from {folder.name}: {self.samples:,} samples, round {self.rounds}"
        said = [what]
        if self.unsent:
            said.append("what rounds as averaging.wire: sparse had not sent by then is in no checkpoint: it is lost")
        if self.moved:
            said.append(
                "the checkpoint was made with other stages: weights and optimizer state go to the stages of this plan,"
                " and some samples of this epoch are read twice or not at all"
            )
            return said
        lost = self.checkpoint.manifest.lost
        return [*said, *(f"{name} had been lost before this checkpoint: its optimizer begins anew" for name in lost)]


def _same_but_for_comers(plan: Plan, saved: str) -> bool:
    """Whether the clusters of a checkpoint, as it has `saved` them, are those of the plan, but for such as came."""
    before = [spans for spans in json.loads(saved) if spans[0] not in ADDED]
    now = json.loads(json.dumps([spans for name, spans in _spans(plan) if name not in ADDED]))
    return bool(before == now)


def _spans(plan: Plan) -> list[tuple[str, list[object]]]:
    return [(each.name, [each.name, *(stage.units for stage in each.stages)]) for each in plan.clusters]


def _updates_of(plan: Plan, job: Job, cluster: str, samples: int) -> int:
    start, end = plan.share(cluster)
    return round(samples * (end - start) / (job.micro_batch * job.update_every))


def made_with(plan: Plan, job: Job) -> dict[str, str]:
    """Return, by key, what must be equal for a checkpoint to fit a plan and a job.

    Learning rates, schedules, clipping, rounds and the end of the job may change.
    """
    return {
        "model": plan.costs.fingerprint,
        "clusters": json.dumps([spans for _, spans in _spans(plan)]),
        "shares": json.dumps([plan.share(cluster.name) for cluster in plan.clusters]),
        "job.data": job.data.said,
        "job.micro_batch": str(job.micro_batch),
        "job.update_every": str(job.update_every),
        "job.optimizer": json.dumps(_without_rates(job.optimizer), sort_keys=True),
        "job.averaging.outer": job.averaging.outer_name,
        "job.tied": job.tied,
        "job.seed": str(job.seed),
    }


def data_made_with(data: str) -> dict[str, str]:
    """By key, what a checkpoint says of the data and of the order in which its samples are read.

    `data`: their fingerprint; empty where it is not known.
    """
    return ({"data": data} if data else {}) | {"data.order": ORDER}


def check_same_as_before(manifest: Mapping[str, str], data: str, path: Path) -> None:
    """Raises InvalidInput where a run would go on with other data than its checkpoint was made with, or would read
    them in another order. `manifest`: what the checkpoint says that it was made with.
    """
    for key, value in data_made_with(data).items():
        before = manifest.get(key, "sorted" if key == "data.order" else value)
        if before != value:
            message = (
                f"the checkpoint was made with other data ({before}, now {value})"
                if key == "data"
                else "the checkpoint is of an earlier version, which read the samples in another order: some would come"
                " twice in this epoch, and others not"
            )
            hint = "bring the same data, start a new run, or go on all the same with --other-data"
            raise InvalidInput(message, path=str(path), key=key, hint=hint)


def _without_rates(optimizer: OptimizerConfig) -> dict[str, object]:
    groups = [group.model_dump(mode="json", exclude={"lr"}) for group in optimizer.groups]
    return {"name": optimizer.name, **optimizer.arguments, **({"groups": groups} if groups else {})}


def _both(before: str | None, now: str) -> str:
    short = before is not None and len(before) + len(now) < _READABLE
    return f" ({before}, now {now})" if short else ""


def resumed_optimizer(
    setups: Mapping[str, StageSetup], setup: StageSetup, resumed: ResumedRun
) -> Mapping[tuple[str, str], Tensor]:
    """The optimizer state of a stage, which is read when it is asked for.

    That of a cluster that was lost begins anew, except for the outer optimizer's, which is the same at all members of
    a ring and is taken from another. A stage of another plan takes the state of each parameter from one of the stages
    that had trained it: of the cluster of its own name where there was one.
    """
    checkpoint = resumed.checkpoint
    mine = {name for segment in setup.segments for name in segment.parameters}
    if resumed.moved:
        return checkpoint.optimizer_of(mine, prefer=setup.cluster)
    lost = checkpoint.manifest.lost
    if setup.cluster not in lost:
        return checkpoint.optimizer(setup.cluster, setup.index)
    found: dict[tuple[str, str], Tensor] = {}
    for other in setups.values():
        if other.cluster not in lost and any(name in mine for each in other.segments for name in each.parameters):
            saved = checkpoint.optimizer(other.cluster, other.index)
            found |= {key: saved[key] for key in saved if key[0] in mine and key[1].startswith(OUTER_PREFIX)}
    return found


def resumed_weights(setups: Mapping[str, StageSetup], plan: Plan, job: Job, resumed: ResumedRun) -> StoredTensors[str]:
    """The weights and buffers of all stages, by original name, each read when it is asked for.

    Raises InvalidInput where the checkpoint lacks something that these stages would have saved.
    """
    checkpoint = resumed.checkpoint
    if not resumed.moved:
        checkpoint.require(parts_of_stages(setups.values()))
    names = {spec.name for setup in setups.values() for spec in setup.program.weight_specs}
    saved = checkpoint.weights(names)
    missing = names - saved.keys()
    if not missing:
        return saved
    lost = sorted(missing & {name for setup in setups.values() for each in setup.segments for name in each.names})
    if lost:
        raise InvalidInput(f"the checkpoint is not complete: it lacks {', '.join(lost)}", path=str(checkpoint.folder))
    # Buffers that the model does not save (rotary frequencies) come from its construction even on a resume.
    made = {name: tensor for name, tensor in make_buffers(job, plan.job_file).items() if name in missing}
    return StoredTensors(saved.files, saved.names, made)
