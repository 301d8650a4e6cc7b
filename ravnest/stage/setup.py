"""What the driver tells a stage before it starts: everything it needs, and nothing it could decide itself.

A setup reaches the stage through Ray's authenticated control channel. It holds no weights: those follow
over the transport, span by span (design §5, §9).
"""

from collections.abc import Mapping
from dataclasses import dataclass, field

from cluster_planner import WorkTimes
from ravnest.job.config import Job
from ravnest.pipeline import StageShape, stage_name
from ravnest.splitting import StageProgram
from ravnest.stage.tied import TiedSetup
from ring_allreduce import RingSpec
from ring_allreduce.transport import Keys, LinkShape, NodeShape, PeerAddress


@dataclass(frozen=True)
class SegmentSetup:
    """A segment that the stage holds, and the ring that averages it."""

    ring: int  # the ring's number in the plan
    parameters: tuple[str, ...]  # trainable ones, in unit order
    buffers: tuple[str, ...]  # floating-point buffers that learn (set to the average)
    counters: tuple[str, ...]  # integer buffers (set to the maximum)
    frozen: tuple[str, ...]  # parameters that nobody trains: only the keeper needs them, for the final weights
    progress: RingSpec  # of the trained parameters' progress; the same at every member, as is the next
    averaged_buffers: RingSpec | None  # of the buffers, where there are any
    keeper: bool  # this member sends the anchor to the driver for checkpoints
    copies: int = 1  # stages of its cluster that hold the segment, and share the weight of the cluster's samples

    @property
    def members(self) -> tuple[str, ...]:
        """Transport names, in passing order."""
        return self.progress.members

    @property
    def names(self) -> tuple[str, ...]:
        """Every weight and buffer of the segment that is saved."""
        return (*self.parameters, *self.buffers, *self.counters, *self.frozen)


@dataclass(frozen=True)
class MemoryCap:
    """What the imitated node has, for the stage and its process."""

    node: str
    node_bytes: int
    process_bytes: int  # of the process itself, as planned


@dataclass(frozen=True)
class StageSetup:
    """One stage of one cluster."""

    cluster: str
    index: int
    stages: int
    window: int  # to begin with
    largest_window: int  # up to which it may be tuned
    share: tuple[float, float]
    total_updates: int | None
    evaluation_batch: int  # samples
    evaluation_short_last: bool  # False for a model whose batch size is fixed
    job: Job
    job_file: str
    search_dirs: tuple[str, ...]
    program: StageProgram
    segments: tuple[SegmentSetup, ...]
    threads: int
    device: str
    max_message_bytes: int
    room_to_split: int  # see StageShape.room
    recomputes: bool  # forgets activations after each forward, and runs it again for the backward
    token: bytes = field(repr=False)
    keys: Keys | None = field(default=None, repr=False)  # of an encrypted run
    links: Mapping[str, LinkShape] = field(default_factory=dict)
    node: NodeShape | None = None
    pace: WorkTimes | None = None
    """Of the imitated node."""
    memory: MemoryCap | None = None
    tied: TiedSetup = field(default_factory=TiedSetup)
    in_flight_bytes: Mapping[str, int] = field(default_factory=dict)
    """To each stage of another node, what its link holds (launch/in_flight.py)."""
    timeline: bool = False
    """Record what is done and when, for trace.json."""

    @property
    def name(self) -> str:
        return stage_name(self.cluster, self.index)

    @property
    def is_first(self) -> bool:
        return self.index == 0

    @property
    def is_last(self) -> bool:
        return self.index == self.stages - 1

    @property
    def shape(self) -> StageShape:
        """What the stage's machine is told."""
        job = self.job
        return StageShape(
            stages=self.stages,
            index=self.index,
            update_every=job.update_every,
            max_staleness=job.max_staleness,
            window=self.window,
            max_lag=job.max_lag,
            clip=job.optimizer.clip_norm is not None,
            schedule=job.schedule,
            room=self.room_to_split,
        )

    @property
    def input_names(self) -> tuple[str, ...] | None:
        """Of the model's own inputs, in the first stage's order; no other stage takes them."""
        return tuple(spec.name for spec in self.program.inputs) if self.is_first else None

    def neighbour(self, step: int) -> str:
        """The transport name of the stage `step` places along the pipeline."""
        return stage_name(self.cluster, self.index + step)


@dataclass(frozen=True)
class StageAddress:
    """Where a placed stage listens, and where it runs."""

    peer: PeerAddress
    hostname: str
    pid: int
    cores: int
    samples: tuple[int, int] | None = None
    """Of the training and the held-out set as they are read there; None where they are not."""
