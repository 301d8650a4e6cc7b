"""State on its way from the stages to a checkpoint on disk.

In: tensors that the stages send, and orders to begin and commit a checkpoint. Out: complete checkpoints. A stage's part
is complete when it has sent as many tensors as it says. Each segment comes from one member of its ring, the keeper, and
optimizer state from every stage. Files are written by an executor, one after another, while the driver goes on
listening; their format and the atomic commit are those of ravnest/checkpoints/checkpoint.py.
"""

from collections import deque
from collections.abc import Callable, Iterable, Mapping
from concurrent.futures import Executor, Future
from dataclasses import dataclass, field
from pathlib import Path

from torch import Tensor

from cluster_planner import Plan
from ravnest.checkpoints.checkpoint import CheckpointWriter, optimizer_file, segment_file
from ravnest.driver import control as c
from ravnest.errors import RunFailed
from ravnest.stage import messages as m
from ravnest.stage.setup import StageSetup


def parts_of_plan(plan: Plan) -> frozenset[str]:
    """The names of the files that every checkpoint of a run of this plan holds."""
    segments = (segment_file(ring) for ring in range(len(plan.rings)))
    stages = ((cluster.name, index) for cluster in plan.clusters for index in range(len(cluster.stages)))
    return frozenset((*segments, *(optimizer_file(*stage) for stage in stages)))


def parts_of_stages(setups: Iterable[StageSetup]) -> frozenset[str]:
    """The names of all files of a checkpoint of these stages, with those of averaged copies of tied parameters."""
    every = list(setups)
    segments = (segment_file(segment.ring) for setup in every for segment in setup.segments)
    return frozenset((*segments, *(optimizer_file(setup.cluster, setup.index) for setup in every)))


@dataclass
class _Part:
    """What one stage has sent so far."""

    weights: dict[str, Tensor] = field(default_factory=dict)
    optimizer: dict[tuple[str, str], Tensor] = field(default_factory=dict)

    def __len__(self) -> int:
        return len(self.weights) + len(self.optimizer)


class CheckpointCollector:
    """Gathers the checkpoints that are under way, each of one round."""

    def __init__(
        self,
        setups: Mapping[str, StageSetup],
        begin: Callable[[c.BeginCheckpoint], CheckpointWriter],
        disk: Executor,
    ) -> None:
        """`begin` opens the writer of a checkpoint. `disk` writes the files; it must keep the order of its tasks."""
        self._setups = setups
        self._complete = parts_of_stages(setups.values())
        self._begin = begin
        self._writers: dict[int, CheckpointWriter] = {}
        self._parts: dict[tuple[int, str], _Part] = {}
        self._disk = disk
        self._writing: deque[tuple[int, Future[Path | None]]] = deque()

    def begin(self, begun: c.BeginCheckpoint) -> None:
        """Open a checkpoint: the stages are going to send their state."""
        self._writers[begun.round] = self._begin(begun)

    def take(self, stage: str, message: m.StateTensor, tensors: tuple[Tensor, ...]) -> None:
        """Take one tensor of a stage's state. Raises RunFailed for a tensor that this stage must not send."""
        if message.round not in self._writers or len(tensors) != 1:
            raise RunFailed(f"{stage} sent {message.name} for a checkpoint of round {message.round}, which is not open")
        part = self._parts.setdefault((message.round, stage), _Part())
        if message.part == "weight":
            if message.name not in _kept_names(self._setups[stage]):
                raise RunFailed(f"{stage} sent {message.name}, which it does not keep")
            part.weights[message.name] = tensors[0]
        else:
            if not any(message.name in segment.parameters for segment in self._setups[stage].segments):
                raise RunFailed(f"{stage} sent optimizer state of {message.name}, which it does not train")
            part.optimizer[message.name, message.key] = tensors[0]

    def finish(self, stage: str, message: m.StateSent) -> None:
        """A stage has sent all of its state: its files are written. Raises RunFailed when something is missing."""
        part = self._parts.pop((message.round, stage), _Part())
        if message.round not in self._writers:
            raise RunFailed(f"{stage} finished its state for a checkpoint of round {message.round}, which is not open")
        if len(part) != message.tensors:
            raise RunFailed(f"{stage} sent {len(part)} tensors of its state, not {message.tensors} as it says")
        setup, writer = self._setups[stage], self._writers[message.round]
        missing = sorted(_kept_names(setup) - part.weights.keys())
        if missing:
            raise RunFailed(f"{stage} did not send {', '.join(missing)}, of which it keeps the only copy")
        self._writing.append((message.round, self._disk.submit(_write_part, writer, setup, part)))

    def commit(self, round_: int) -> None:
        """Every stage has finished: once all files are written, the checkpoint becomes the latest."""
        self._writing.append((round_, self._disk.submit(self._writers.pop(round_).commit, self._complete)))

    def written(self) -> list[tuple[Path, int]]:
        """The checkpoints that became complete since the last call, with their rounds. Raises what writing raised."""
        whole = []
        while self._writing and self._writing[0][1].done():
            round_, done = self._writing.popleft()
            path = done.result()
            if path is not None:
                whole.append((path, round_))
        return whole

    @property
    def busy(self) -> bool:
        """Whether something is still to be written."""
        return bool(self._writing)


def _write_part(writer: CheckpointWriter, setup: StageSetup, part: _Part) -> None:
    for segment in setup.segments:
        if segment.keeper:
            writer.add_segment(segment.ring, {name: part.weights[name] for name in segment.names})
    writer.add_optimizer(setup.cluster, setup.index, part.optimizer)


def _kept_names(setup: StageSetup) -> set[str]:
    return {name for segment in setup.segments if segment.keeper for name in segment.names}
