"""A whole run in one thread of one process, for tests: real stages over the in-process transport.

In: setups and initial states of the stages, and a `RunControl`. Out: a `LocalResult`; nothing is written to disk. The
run is deterministic: the stages take turns in order, computations happen inline, and time is a counter. It differs from
a real run only in who carries the bytes and who schedules.
"""

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from types import MappingProxyType

from torch import Tensor

from cluster_planner import Plan
from ravnest.checkpoints.manifest import SEGMENTS
from ravnest.checkpoints.weight_files import tensors_in
from ravnest.driver import control as c
from ravnest.driver import instructions as ins
from ravnest.driver.liars import LiarWatch
from ravnest.driver.preparation import StageState, hand_out, needed
from ravnest.driver.run_rings import RunRings
from ravnest.driver.standing import Standing
from ravnest.driver.state_donors import StateDonors
from ravnest.driver.taking_over import first_instructions, sort_answer, take_over_order
from ravnest.errors import RunFailed
from ravnest.pipeline import stage_place
from ravnest.recovery.donors import Restored
from ravnest.stage import epoch_messages as em
from ravnest.stage import messages as m
from ravnest.stage import state_messages as sm
from ravnest.stage.assembling import assemble, batch_source, joining, stand_by, standing_by
from ravnest.stage.executor import InlineExecutor
from ravnest.stage.joining import JoiningStage
from ravnest.stage.runtime import StageRuntime
from ravnest.stage.setup import StageSetup
from ring_allreduce.transport import (
    Delivery,
    Endpoint,
    InProcessNetwork,
    Lane,
    LinkShape,
    Message,
    NodeShape,
    Outbox,
)

_TURNS_WITHOUT_NEWS = 10_000
_TURN_S = 1e-3
_ROOM_PIECES = 1 << 20


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
    lost: list[ins.RecordClusterLost] = field(default_factory=list)
    """The clusters that were lost."""
    handed_on: list[ins.RecordProgressHandedOn] = field(default_factory=list)
    """What clusters that left had handed on."""
    trains: list[ins.RecordClusterTrains] = field(default_factory=list)
    """The clusters that joined and came to train."""
    left_again: list[ins.RecordJoinFailed] = field(default_factory=list)
    """The clusters that joined and were lost before they trained."""
    restored: list[Restored] = field(default_factory=list)
    """Where the stages that joined have their state from."""
    contributions: list[dict[str, object]] = field(default_factory=list)
    """What members gave to the rings of committed rounds, where a robust average has seen it."""
    begun: list[ins.BeginCheckpoint] = field(default_factory=list)
    """The round, the samples and the updates of each of these checkpoints."""


class LocalRun:
    """Drives the stages until the control says that the run is over."""

    def __init__(
        self,
        setups: Mapping[str, StageSetup],
        states: Mapping[str, StageState],
        control: c.RunControl,
        *,
        plan: Plan | None = None,
        order: Callable[[Sequence[str]], Sequence[str]] = lambda stages: stages,
        links: Mapping[tuple[str, str], LinkShape] = MappingProxyType({}),
        nodes: Mapping[str, NodeShape] = MappingProxyType({}),
    ) -> None:
        """`plan` is needed where stages are lost. `order` is called before each turn with the names of all stages, in
        the plan's order. It returns those that take their turn, in their order. `links` and `nodes` are those of the
        network that are emulated, see InProcessNetwork."""
        self._now_s = 0.0
        self.network = network = InProcessNetwork(now=self.now, links=links, nodes=nodes)
        self.driver: Endpoint = network.endpoint(m.DRIVER, m.codec())
        endpoints = {name: network.endpoint(name, m.codec()) for name in setups}
        addresses = {name: endpoint.address for name, endpoint in endpoints.items()}
        self._addresses = dict(addresses)
        self.rings = None if plan is None else RunRings(plan, setups, addresses)
        self.donors: StateDonors | None = None
        if self.rings is not None:
            self.donors = StateDonors(self.rings, self.driver, lambda restored: self.result.restored.append(restored))
        self._outbox = Outbox(self.driver)
        self._states = dict(states)
        self._saved: dict[int, dict[tuple[str, str], Tensor]] = {}
        self._anchors: dict[int, dict[str, Tensor]] = {}
        self._epoch = 0
        self._kept: dict[str, int] = {}
        """The stages of lost clusters that stand by, with the epoch from which on they do."""
        network.connect_all()
        self.stages: dict[str, StageRuntime | JoiningStage] = {
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
        self.remember: Callable[[], None] = lambda: None
        """Is called when a driver writes down what another one needs to take the run over."""
        self._order = order
        self._liars = LiarWatch(lambda stage: stage_place(stage)[0])
        self.result = LocalResult()
        self._clusters = {name: setup.cluster for name, setup in setups.items() if setup.is_last}
        self._anchor: dict[str, Tensor] = {}
        self._files: dict[tuple[str, str], bytearray] = {}
        for name, setup in setups.items():
            if setup.is_first:
                self.driver.send(name, Lane.PIPELINE, m.Go())

    def now(self) -> float:
        """Seconds of the run's own clock."""
        return self._now_s

    def pass_s(self, seconds: float) -> None:
        """Let time pass in which nobody takes a turn."""
        self._now_s += seconds

    def run(self, until: Callable[[], bool] = lambda: False) -> LocalResult:
        """Run to the end, or until `until` returns true. Raises RunFailed when nothing happens any more."""
        quiet = 0
        while self.control.phase is not ins.RunPhase.DONE and not until():
            quiet = 0 if self.turn() else quiet + 1
            if quiet > _TURNS_WITHOUT_NEWS:
                raise RunFailed(f"the run stands still in phase {self.control.phase.name}")
        return self.result

    def turn(self) -> bool:
        """Let the stages take a turn, then the driver. Returns whether a stage reported more than that it is alive."""
        self._now_s += _TURN_S
        for name in self._order(list(self.stages)):
            self.stages[name].turn(0.0)
            stopped = standing_by(self.stages[name])
            if stopped is not None:
                setup = stopped.setup
                self.stages[name] = stand_by(setup, stopped, InlineExecutor(), batch_source(setup), self.now)
            elif self.stages[name].stopped:
                self.forget(name)
        news = False
        for delivery in self.driver.poll(0.0):
            news = news or not isinstance(delivery.message, m.Alive)
            self.take(delivery)
        self.follow(self.control.tick(self._now_s))
        for cluster in () if self.donors is None else self.donors.turn(self._now_s):
            self.control.clusters.newcomers.without_donors(cluster)
        self.result.contributions += self._liars.lines()
        self._lose_liars()
        self._outbox.flush()
        for name in self.stages:
            self.driver.send(name, Lane.PIPELINE, m.Alive())
        return news

    def switch_off(self, stage: str) -> None:
        """End a stage at once, while no driver is there that hears of it."""
        self.forget(stage)

    def take_over(
        self, term: int, standing_at: Callable[[Mapping[str, em.StagePosition]], tuple[c.RunControl, Standing]]
    ) -> None:
        """Another driver takes the run over from the one before, of which nothing is left.

        `standing_at`: makes its control, by what the stages have answered.
        """
        self.network.remove(m.DRIVER)
        self.driver = self.network.endpoint(m.DRIVER, m.codec())
        self.driver.connect(self._addresses)
        self.driver.epoch = term
        self._outbox = Outbox(self.driver)
        if self.rings is not None:
            self.donors = StateDonors(self.rings, self.driver, lambda restored: self.result.restored.append(restored))
        self._files.clear()
        order, positions, early = take_over_order(self.driver, term), dict[str, em.StagePosition](), list[Delivery]()
        for name in self.stages:
            self.driver.send(name, Lane.PIPELINE, order)
        while set(self.stages) - positions.keys():
            for name in self._order(list(self.stages)):
                self.stages[name].turn(0.0)
                if self.stages[name].stopped:
                    self.forget(name)
            for delivery in self.driver.poll(0.0):
                sort_answer(delivery, term, positions, early)
        self.control, standing = standing_at(positions)
        self.follow(first_instructions(self.control, standing))
        self.remember()
        for delivery in early:
            self.take(delivery)

    def lose(self, stage: str, reason: str = "killed", *, spoils: bool = False) -> None:
        """End a stage at once, as if its machine were switched off. Raises NodeLost where that ends the run."""
        self.forget(stage)
        self.follow(self.control.lost(stage, reason, spoils=spoils))

    def _lose_liars(self) -> None:
        for stage, reason, spoils in self._liars.found():
            if stage in self.stages:
                self.lose(stage, reason, spoils=spoils)

    def drop(self, cluster: str, but: Collection[str] = ()) -> None:
        """End what is left of a cluster that is lost."""
        for stage in [name for name in self.stages if stage_place(name)[0] == cluster and name not in but]:
            self.forget(stage)

    def rejoin(self, cluster: str, plan: Plan | None = None, made: Mapping[str, StageSetup] | None = None) -> None:
        """Begin a lost cluster anew: its stages are new ones, and get their state while the run goes on.

        `plan` and `made`, the setups of its stages, are given where the cluster is cut otherwise than before.
        """
        assert self.rings is not None
        kept = {name: epoch for name, epoch in self._kept.items() if stage_place(name)[0] == cluster and made is None}
        self._kept = {name: epoch for name, epoch in self._kept.items() if stage_place(name)[0] != cluster}
        self.drop(cluster, but=kept)
        epochs = {name: kept.get(name, self._epoch) for name in made or self.rings.of_cluster(cluster)}
        setups = {
            name: replace(setup, transport=replace(setup.transport, joins=True, epoch=epochs[name]), initial=())
            for name, setup in (self.rings.of_cluster(cluster) if made is None else made).items()
        }
        self._clusters = {name: each for name, each in self._clusters.items() if each != cluster}
        self._clusters |= {name: cluster for name, setup in setups.items() if setup.is_last}
        endpoints = {name: self.network.endpoint(name, m.codec()) for name in setups if name not in kept}
        addresses = {name: endpoint.address for name, endpoint in endpoints.items()}
        self.driver.connect(addresses)
        self._addresses |= addresses
        for name, endpoint in endpoints.items():
            endpoint.connect({**addresses, m.DRIVER: self.driver.address})
            setup = setups[name]
            self.stages[name] = joining(setup, endpoint, InlineExecutor(), batch_source(setup), self.now)
        self.rings.begin_anew(self.rings.plan if plan is None else plan, setups, addresses)
        self.follow(self.control.join(cluster, self.rings.members(cluster)))

    def _lost(self, cluster: str) -> None:
        if self.rings is not None and self.donors is not None:
            self.donors.lost(list(self.rings.of_cluster(cluster)))

    def take(self, delivery: Delivery) -> None:
        """Take what a stage says, as a driver does."""
        self.note(delivery.sender, delivery.message, delivery.tensors)
        if self.donors is not None:
            self.donors.take(delivery.sender, delivery.message, self._now_s)
        of_contributions = em.ContributionsSeen | em.MemberRefused | m.RingFinishedMessage
        if isinstance(delivery.message, of_contributions) and self.rings is not None:
            told = delivery.sender, delivery.message
            self._liars.saw(*told, self.rings.members_of(*told))
            self._lose_liars()
        self.follow(self.control.handle(delivery.sender, delivery.message))
        if isinstance(delivery.message, m.ContributionFinishedMessage):
            self.remember()

    def forget(self, stage: str) -> None:
        """A stage has ended."""
        self.stages.pop(stage)
        self.network.remove(stage)

    def note(self, sender: str, message: Message, tensors: tuple[Tensor, ...]) -> None:
        """Keep what a stage's message says for the result."""
        match message:
            case m.Updated():
                self.result.staleness.setdefault(sender, []).extend(message.staleness)
                if sender in self._clusters:
                    self.result.losses.setdefault(self._clusters[sender], []).extend(message.losses)
            case sm.StatePiece():
                file = self._files.setdefault((sender, message.file), bytearray())
                file += bytes(tensors[0].numpy().data)
                if message.last:
                    whole = tensors_in(bytes(self._files.pop((sender, message.file))))
                    if message.file.startswith(SEGMENTS):
                        self._anchor |= whole
                    else:
                        saved = {(one.rpartition(".")[0], one.rpartition(".")[2]): whole[one] for one in whole}
                        self._saved.setdefault(message.round, {}).update(saved)

    def follow(self, instructions: list[ins.Instruction]) -> None:
        """Carry out the instructions of the control."""
        for instruction in instructions:
            match instruction:
                case ins.SendToStage():
                    self.driver.send(instruction.peer, Lane.PIPELINE, instruction.message)
                case ins.RecordRoundCommitted() | ins.EnterPhase():
                    if isinstance(instruction, ins.RecordRoundCommitted):
                        self._liars.committed(instruction.round)
                    self.remember()
                case ins.RecordClusterLost():
                    self.result.lost.append(instruction)
                    self._kept |= dict.fromkeys(instruction.standing_by, self.control.rounds.epoch)
                    self._lost(instruction.cluster)
                    self.remember()
                case ins.RecordClusterTrains():
                    assert self.rings is not None
                    assert self.donors is not None
                    self.rings.trains(instruction.cluster)
                    self.donors.trains(instruction.cluster)
                    self.result.trains.append(instruction)
                case ins.RecordProgressHandedOn():
                    self.result.handed_on.append(instruction)
                case ins.RecordJoinFailed():
                    self.result.left_again.append(instruction)
                    self._lost(instruction.cluster)
                case ins.FindDonors():
                    assert self.donors is not None
                    self.donors.find(instruction, self._now_s)
                case ins.HandOver():
                    self._hand_over(instruction)
                case ins.ReformRings():
                    assert self.rings is not None
                    self._epoch = instruction.epoch
                    for stage, message in self.rings.reform(instruction).items():
                        self.driver.send(stage, Lane.PIPELINE, message)
                case ins.RecordEvaluation():
                    self.result.evaluations.append(instruction.evaluated)
                case ins.BeginCheckpoint():
                    self.result.begun.append(instruction)
                    training = self.control.clusters.training
                    for name in (name for name in self.stages if stage_place(name)[0] in training):
                        room = sm.StateWanted(round=instruction.round, pieces=_ROOM_PIECES)
                        self.driver.send(name, Lane.PIPELINE, room)
                case ins.CommitCheckpoint():
                    self.result.checkpoints.append(dict(self._anchor))
                    self._anchors[instruction.round] = dict(self._anchor)
                    self.follow(self.control.checkpoint_written(instruction.round))

    def _hand_over(self, order: ins.HandOver) -> None:
        """Send a cluster the state of a round that is saved. Its optimizers go on from another cluster's state."""
        assert self.rings is not None
        setups = self.rings.of_cluster(order.cluster)
        saved = self._saved.get(order.round, {})
        states = {}
        for name, setup in setups.items():
            mine = {each for segment in setup.segments for each in segment.parameters}
            weights = {**next(iter(self._states.values())).weights, **self._anchors[order.round]}
            optimizer = {key: tensor for key, tensor in saved.items() if key[0] in mine}
            states[name] = StageState(weights, optimizer, order.updates)
        hand_out(self._outbox, self.driver, setups.values(), states, order.round)
