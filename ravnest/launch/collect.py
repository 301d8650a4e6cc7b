"""State on its way from the stages to a checkpoint on disk.

Decides when a stage's part is whole: it has sent as many tensors as it said. The format and its atomicity are
training.checkpoint's. Each segment comes from one keeper, optimizer state from every stage.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from torch import Tensor

from ravnest.errors import RunFailed
from ravnest.launch import control as c
from ravnest.runtime import messages as m
from ravnest.runtime.setup import StageSetup
from ravnest.training.checkpoint import CheckpointWriter


@dataclass
class _Part:
    """What one stage has sent so far."""

    weights: dict[str, Tensor] = field(default_factory=dict)
    optimizer: dict[tuple[str, str], Tensor] = field(default_factory=dict)

    def __len__(self) -> int:
        return len(self.weights) + len(self.optimizer)


class CheckpointCollector:
    """Gathers the checkpoints that are under way, by round."""

    def __init__(
        self, setups: Mapping[str, StageSetup], begin: Callable[[c.CheckpointBegun], CheckpointWriter]
    ) -> None:
        """`begin` opens the writer of a checkpoint."""
        self._setups = setups
        self._begin = begin
        self._writers: dict[int, CheckpointWriter] = {}
        self._parts: dict[tuple[int, str], _Part] = {}

    def begin(self, begun: c.CheckpointBegun) -> None:
        self._writers[begun.round] = self._begin(begun)

    def take(self, stage: str, message: m.StateTensor, tensors: tuple[Tensor, ...]) -> None:
        """One tensor of a stage's state. Raises RunFailed when it is none of that stage's to send."""
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
        """A stage has sent all it has: write its files. Raises RunFailed when something is missing."""
        part = self._parts.pop((message.round, stage), _Part())
        if message.round not in self._writers:
            raise RunFailed(f"{stage} finished its state for a checkpoint of round {message.round}, which is not open")
        if len(part) != message.tensors:
            raise RunFailed(f"{stage} sent {len(part)} tensors of its state, not {message.tensors} as it says")
        setup, writer = self._setups[stage], self._writers[message.round]
        missing = sorted(_kept_names(setup) - part.weights.keys())
        if missing:
            raise RunFailed(f"{stage} did not send {', '.join(missing)}, of which it keeps the only copy")
        for segment in setup.segments:
            if segment.keeper:
                writer.add_segment(segment.ring, {name: part.weights[name] for name in segment.names})
        writer.add_optimizer(setup.cluster, setup.index, part.optimizer)

    def commit(self, round_: int) -> Path:
        """Every stage has finished: the checkpoint becomes the latest."""
        return self._writers.pop(round_).commit()


def _kept_names(setup: StageSetup) -> set[str]:
    return {name for segment in setup.segments if segment.keeper for name in segment.names}
