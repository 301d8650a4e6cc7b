"""A whole run in one thread of one process, for tests and experiments: real stages over the in-process transport.

In: setups and initial states of the stages, and a `RunControl`. Out: a `LocalResult`; nothing is written to disk. The
run is deterministic: the stages take turns in order, computations happen inline, and time is a counter. It differs from
a real run only in who carries the bytes and who schedules.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

from torch import Tensor

from ravnest.driver import control as c
from ravnest.driver.preparation import StageState, needed
from ravnest.errors import RunFailed
from ravnest.stage import messages as m
from ravnest.stage.executor import InlineExecutor
from ravnest.stage.process import assemble, batch_source
from ravnest.stage.runtime import StageRuntime
from ravnest.stage.setup import StageSetup
from ring_allreduce.transport import Endpoint, InProcessNetwork, Lane, Message

_TURNS_WITHOUT_NEWS = 10_000
_TURN_S = 1e-3


@dataclass
class LocalResult:
    """What the stages reported, in order."""

    losses: dict[str, list[float]] = field(default_factory=dict)
    """By cluster: the loss of each micro-batch."""
    staleness: dict[str, list[int]] = field(default_factory=dict)
    """By stage: the staleness of each gradient, in updates."""
    evaluations: list[m.EvaluationFinished] = field(default_factory=list)
    checkpoints: list[dict[str, Tensor]] = field(default_factory=list)
    """The anchor of each round that was saved, by parameter name."""
    begun: list[c.BeginCheckpoint] = field(default_factory=list)
    """The round, the samples and the updates of each of these checkpoints."""


class LocalRun:
    """Drives the stages until the control says that the run is over."""

    def __init__(
        self,
        setups: Mapping[str, StageSetup],
        states: Mapping[str, StageState],
        control: c.RunControl,
        *,
        order: Callable[[Sequence[str]], Sequence[str]] = lambda stages: stages,
    ) -> None:
        """`order` is called before each turn with the names of all stages, in the plan's order. It returns those that
        take their turn, in their order."""
        self._now_s = 0.0
        network = InProcessNetwork(now=self.now)
        self.driver: Endpoint = network.endpoint(m.DRIVER, m.codec())
        endpoints = {name: network.endpoint(name, m.codec()) for name in setups}
        network.connect_all()
        self.stages: dict[str, StageRuntime] = {
            name: assemble(
                setup,
                endpoints[name],
                InlineExecutor(),
                batch_source(setup),
                {tensor: states[name].weights[tensor] for tensor in needed(setup)},
                states[name].optimizer,
                states[name].version,
                now=self.now,
            )
            for name, setup in setups.items()
        }
        self.control = control
        self._order = order
        self.result = LocalResult()
        self._clusters = {name: setup.cluster for name, setup in setups.items() if setup.is_last}
        self._anchor: dict[str, Tensor] = {}
        for name, setup in setups.items():
            if setup.is_first:
                self.driver.send(name, Lane.PIPELINE, m.Go())

    def now(self) -> float:
        """Seconds of the run's own clock."""
        return self._now_s

    def run(self, until: Callable[[], bool] = lambda: False) -> LocalResult:
        """Run to the end, or until `until` returns true. Raises RunFailed when nothing happens any more."""
        quiet = 0
        while self.control.phase is not c.RunPhase.DONE and not until():
            quiet = 0 if self.turn() else quiet + 1
            if quiet > _TURNS_WITHOUT_NEWS:
                raise RunFailed(f"the run stands still in phase {self.control.phase.name}")
        return self.result

    def turn(self) -> bool:
        """Let the stages take a turn, then the driver. Returns whether a stage reported more than that it is alive."""
        self._now_s += _TURN_S
        for name in self._order(list(self.stages)):
            self.stages[name].turn(0.0)
        news = False
        for delivery in self.driver.poll(0.0):
            news = news or not isinstance(delivery.message, m.Alive)
            self.note(delivery.sender, delivery.message, delivery.tensors)
            self.follow(self.control.handle(delivery.sender, delivery.message))
        self.follow(self.control.tick(self._now_s))
        for name in self.stages:
            self.driver.send(name, Lane.PIPELINE, m.Alive())
        return news

    def note(self, sender: str, message: Message, tensors: tuple[Tensor, ...]) -> None:
        """Keep what a stage's message says for the result."""
        match message:
            case m.Updated():
                self.result.staleness.setdefault(sender, []).extend(message.staleness)
                if sender in self._clusters:
                    self.result.losses.setdefault(self._clusters[sender], []).extend(message.losses)
            case m.StateTensor(part="weight"):
                self._anchor[message.name] = tensors[0]

    def follow(self, instructions: list[c.Instruction]) -> None:
        """Carry out the instructions of the control."""
        for instruction in instructions:
            match instruction:
                case c.SendToStage():
                    self.driver.send(instruction.peer, Lane.PIPELINE, instruction.message)
                case c.RecordEvaluation():
                    self.result.evaluations.append(instruction.evaluated)
                case c.BeginCheckpoint():
                    self.result.begun.append(instruction)
                case c.CommitCheckpoint():
                    self.result.checkpoints.append(dict(self._anchor))
