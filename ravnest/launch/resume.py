"""Where each stage starts: the initial weights of a new run, or the last checkpoint of a resumed one.

Decides that a resume takes every cluster back to the anchor of the checkpoint's round: what was pending then is
dropped (design §7). Reads a checkpoint lazily, stage by stage.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass

from torch import Tensor

from cluster_planner import Plan
from ravnest.errors import InvalidInput
from ravnest.job import JobConfig
from ravnest.launch import control as c
from ravnest.launch.folder import RunFolder
from ravnest.launch.handout import StageState, needed
from ravnest.materials import make_weights
from ravnest.runtime.setup import StageSetup
from ravnest.training.checkpoint import Checkpoint, CheckpointWriter, load_latest
from ravnest.training.manifest import ClusterPosition


@dataclass(frozen=True)
class Resumed:
    """What is known of the run so far."""

    checkpoint: Checkpoint
    samples: int
    rounds: int
    updates: Mapping[str, int]

    @classmethod
    def load(cls, folder: RunFolder, plan: Plan) -> "Resumed":
        """The latest checkpoint. Raises InvalidInput when it is damaged, or of another plan."""
        checkpoint = load_latest(folder.checkpoints)
        manifest = checkpoint.manifest
        if manifest.plan_fingerprint != plan_fingerprint(plan):
            raise InvalidInput(
                "the checkpoint belongs to another plan (its model or its stages differ): resume with the plan.yaml in"
                " the run's folder",
                path=str(folder.path),
            )
        return cls(checkpoint, manifest.samples, manifest.round, dict(manifest.versions))


def plan_fingerprint(plan: Plan) -> str:
    """What must be equal for a checkpoint to fit: the model, and who holds which units."""
    spans = [(cluster.name, [stage.units for stage in cluster.stages]) for cluster in plan.clusters]
    return f"{plan.costs.fingerprint}:{spans}"


def states_for(
    setups: Mapping[str, StageSetup], plan: Plan, job: JobConfig, resumed: Resumed | None
) -> dict[str, StageState]:
    """Each stage's start."""
    names = {stage: needed(setup) for stage, setup in setups.items()}
    saved: dict[str, Tensor] = {}
    if resumed is not None:
        saved = resumed.checkpoint.weights({name for some in names.values() for name in some})
    # Buffers that the model does not save (rotary frequencies) come from its construction even on a resume.
    missing = any(name not in saved for some in names.values() for name in some)
    made = make_weights(job, plan.job_file) if missing else {}
    weights = {**made, **saved}
    return {
        stage: StageState(
            weights=weights,
            optimizer={} if resumed is None else resumed.checkpoint.optimizer(setup.cluster, setup.index),
            version=0 if resumed is None else resumed.updates[setup.cluster],
        )
        for stage, setup in setups.items()
    }


def writer_opener(
    folder: RunFolder, plan: Plan, resumed: Resumed | None
) -> Callable[[c.CheckpointBegun], CheckpointWriter]:
    """Opens the writer of one checkpoint. Rounds and updates count on from the session that was resumed."""
    rounds_before = 0 if resumed is None else resumed.rounds

    def begin(begun: c.CheckpointBegun) -> CheckpointWriter:
        return CheckpointWriter(
            folder.checkpoints,
            round=rounds_before + begun.round,
            samples=begun.samples,
            clusters={
                name: ClusterPosition(next_micro_batch=updates * plan.workload.update_every, version=updates)
                for name, updates in begun.updates.items()
            },
            plan_fingerprint=plan_fingerprint(plan),
        )

    return begin
