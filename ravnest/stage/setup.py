"""What the driver tells a stage before it starts: everything that it needs and cannot decide itself.

In: a plan and a job, as the driver reads them. Out: the setup of one stage, which reaches it through Ray's
authenticated control channel. A setup holds no weights, only how to make those that the job's seed gives. Others
follow over the transport, span by span (design §5, §9).
"""

from collections.abc import Mapping
from dataclasses import dataclass, field

from cluster_planner import WorkTimes
from ravnest.checkpoints.own_copies import StoredCopy
from ravnest.job.config import Job
from ravnest.pipeline import StageShape, stage_name
from ravnest.splitting import Initialization, StageProgram
from ravnest.stage.tied import TiedSetup
from ring_allreduce import RingSpec
from ring_allreduce.transport import Keys, LinkShape, NodeShape, PeerAddress


@dataclass(frozen=True)
class SegmentSetup:
    """A segment that the stage holds, and the ring that averages it."""

    ring: int
    """The number of the ring in the plan."""
    parameters: tuple[str, ...]
    """The parameters that are trained, in the order of the units."""
    buffers: tuple[str, ...]
    """The floating-point buffers that a round sets to their average."""
    counters: tuple[str, ...]
    """The integer buffers. A round sets them to their maximum."""
    frozen: tuple[str, ...]
    """The parameters that nobody trains. Only the keeper needs them, for the final weights."""
    progress: RingSpec
    """The ring of the trained parameters' progress. It is the same at every member, as `averaged_buffers` is."""
    averaged_buffers: RingSpec | None
    """The ring of the buffers; None where the segment has none."""
    keeper: bool
    """Whether this member sends the anchor to the driver, for checkpoints."""
    taken: tuple[str, ...] = ()
    """The floating-point buffers that a round sets to the values of the ring's first member."""
    taken_buffers: RingSpec | None = None
    """The ring of these; None where the segment has none."""
    local: tuple[str, ...] = ()
    """The buffers that rounds leave alone. Checkpoints have the keeper's."""
    constants: tuple[str, ...] = ()
    """What stages compute with that is neither trained nor saved: buffers that the model makes anew, and frozen
    parameters that another segment holds. A stage that joins gets them with the segment."""
    copies: int = 1
    """The number of stages of its cluster that hold the segment, and share the weight of the cluster's samples."""

    @property
    def members(self) -> tuple[str, ...]:
        """The transport names of the ring's members, in passing order."""
        return self.progress.members

    @property
    def rings(self) -> tuple[RingSpec, ...]:
        """Every ring of the segment, that of progress first."""
        return tuple(ring for ring in (self.progress, self.averaged_buffers, self.taken_buffers) if ring is not None)

    @property
    def names(self) -> tuple[str, ...]:
        """Every weight and buffer of the segment that is saved."""
        return (*self.parameters, *self.buffers, *self.taken, *self.counters, *self.local, *self.frozen)


@dataclass(frozen=True)
class StagePlace:
    """Which stage of which cluster it is. Stages are numbered from 0, and `stages` is how many the cluster has."""

    cluster: str
    index: int
    stages: int


@dataclass(frozen=True)
class StageBounds:
    """How much the stage may do at once, and in all."""

    window: int
    """The window to begin with, in micro-batches."""
    largest_window: int
    """The window up to which it may be tuned."""
    share: tuple[float, float] = (0.0, 1.0)
    """The part of each epoch that the cluster trains on: from where to where, as fractions."""
    order: str = ""
    """The name of an order of the data of the cluster's own; empty where it shares one with the others."""
    total_updates: int | None = None
    """The updates that the cluster is expected to make; None where the run has no known end."""
    room_to_split: int = 0
    """The micro-batches whose backward may be split at a time; see StageShape.room."""
    recomputes: bool = False
    """Whether activations are dropped after each forward, which is then run again before the backward."""


@dataclass(frozen=True)
class EvaluationSetup:
    """How the held-out set is divided into batches."""

    batch: int
    """The samples of one batch."""
    short_last: bool
    """Whether the last batch may be shorter, which it may not where the model's batch size is fixed."""


@dataclass(frozen=True)
class UserCode:
    """The places of the job file and the user's code: `search_dirs` are the folders that are searched."""

    job_file: str
    search_dirs: tuple[str, ...]


@dataclass(frozen=True)
class ComputeResources:
    """What the stage computes with: torch's threads, and torch's name of the device."""

    threads: int
    device: str


@dataclass(frozen=True)
class TransportSetup:
    """How the stage speaks to its peers."""

    token: bytes = field(repr=False)
    """The run's secret, by which its messages are known."""
    max_message_bytes: int
    keys: Keys | None = field(default=None, repr=False)
    """The keys of an encrypted run; None for one that is not."""
    in_flight_bytes: Mapping[str, int] = field(default_factory=dict)
    """What the link to each stage of another node holds in flight, in bytes, by transport name."""
    joins: bool = False
    """Whether the run is under way when the stage begins."""
    epoch: int = 0
    """The epoch of membership in which the stage's process began. Messages of an older one are of a process that had
    its name before, and are dropped."""


@dataclass(frozen=True)
class MemoryCap:
    """The memory of the imitated node, which is for the stage and its process."""

    node: str
    node_bytes: int
    process_bytes: int
    """What the process itself takes, as planned."""


@dataclass(frozen=True)
class ImitatedNode:
    """What is imitated of the stage's node: nothing, by default."""

    links: Mapping[str, LinkShape] = field(default_factory=dict)
    """The links to every stage of another node, by transport name."""
    node: NodeShape | None = None
    """The node's uplink and downlink."""
    pace: WorkTimes | None = None
    """What the node takes for each kind of work."""
    memory: MemoryCap | None = None


@dataclass(frozen=True)
class StageSetup:
    """One stage of one cluster."""

    place: StagePlace
    bounds: StageBounds
    evaluation: EvaluationSetup
    job: Job
    code: UserCode
    program: StageProgram
    segments: tuple[SegmentSetup, ...]
    machine: ComputeResources
    transport: TransportSetup
    imitated: ImitatedNode = ImitatedNode()
    tied: TiedSetup = field(default_factory=TiedSetup)
    timeline: bool = False
    """Whether to record what is done and when, for trace.json."""
    initial: tuple[Initialization, ...] = ()
    """How the stage makes initial weights itself; empty where all are sent."""
    stored: Mapping[str, StoredCopy] = field(default_factory=dict)
    """The initial weights that files hold, by name: the stage takes those that its machine has, too, from there."""
    units: tuple[StageProgram, ...] = ()
    """Of a stage that recomputes one unit at a time, and not all of them at once: its units."""
    successor: "StageSetup | None" = None
    """Of a warm spare, whose own setup has a name of its own: the stage whose place it takes."""

    @property
    def made_names(self) -> frozenset[str]:
        """The weights and buffers that the stage makes itself."""
        return frozenset(name for each in self.initial for name in each.results)

    @property
    def cluster(self) -> str:
        """The name of the stage's cluster."""
        return self.place.cluster

    @property
    def index(self) -> int:
        """The number of the stage in its cluster, from 0."""
        return self.place.index

    @property
    def name(self) -> str:
        """The stage's transport name, such as c0.s1."""
        return stage_name(self.cluster, self.index)

    @property
    def is_first(self) -> bool:
        """Whether the stage takes the model's inputs."""
        return self.index == 0

    @property
    def is_last(self) -> bool:
        """Whether the stage computes the loss."""
        return self.index == self.place.stages - 1

    @property
    def shape(self) -> StageShape:
        """What the stage machine is told of the stage."""
        job = self.job
        return StageShape(
            stages=self.place.stages,
            index=self.index,
            update_every=job.update_every,
            max_staleness=job.staleness_bound,
            window=self.bounds.window,
            max_lag=job.max_lag,
            clip=job.optimizer.clip_norm is not None,
            schedule=job.schedule,
            room=self.bounds.room_to_split,
        )

    @property
    def input_names(self) -> tuple[str, ...] | None:
        """The names of the model's inputs, in the first stage's order; None at every other stage."""
        return tuple(spec.name for spec in self.program.inputs) if self.is_first else None

    def neighbour(self, step: int) -> str:
        """The transport name of the stage `step` places along the pipeline."""
        return stage_name(self.cluster, self.index + step)


@dataclass(frozen=True)
class StageAddress:
    """The address at which a placed stage listens, and the node on which it runs."""

    peer: PeerAddress
    machine: str
    """Where `pid` counts: one running system, and one namespace of processes there (`process_space`)."""
    pid: int
    cores: int
    samples: tuple[int, int] | None = None
    """The samples of the training and the held-out set, as the stage reads them; None where it reads none."""
    holds: tuple[str, ...] = ()
    """The initial weights that it has read from files of its own machine."""
    began_s: float = 0.0
    """When its process began, in seconds since 1970: with `pid` it tells it from all others of its machine."""
