"""The warm spares of a run: processes that follow the rings of stages, and take their places when these are lost.

In: the spares' shadows by the plan, what becomes of processes, and the run's epochs and commits. Out: processes that
follow, the stages whose anchor is held by a spare at this moment, and orders to take a place. No round, barrier or
checkpoint waits for a spare: the owner of the rounds knows none. It belongs to the driver's thread.
"""

from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field, replace
from typing import Literal, Protocol

from cluster_planner import Plan, with_cluster
from ravnest.driver import instructions as ins
from ravnest.driver.observe.place_events import SpareWarmEvent
from ravnest.driver.run_rings import RunRings
from ravnest.driver.state_donors import StateDonors
from ravnest.errors import RavnestError
from ravnest.pipeline import spare_name, stage_name, stage_place
from ravnest.recovery import SPARE_AGAIN_S
from ravnest.stage import epoch_messages as em
from ravnest.stage import messages as m
from ravnest.stage import shadow_messages as shm
from ravnest.stage.setup import StageAddress, StageSetup
from ring_allreduce.rounds import SilenceDeadline
from ring_allreduce.transport import Delivery, Endpoint, Keys, Lane, Message, PeerAddress

WITHOUT_DONOR_S = 10.0
"""A spare that nobody could give the anchor asks again after this time."""


class SpareProcesses(Protocol):
    """Who starts and ends processes: Ray in a real run. No method waits for a process."""

    def begin_spares(self, plan: Plan, setups: Mapping[str, StageSetup], nodes: Mapping[str, str]) -> None:
        """Start a process for each of these spares, on the node that `nodes` says.

        Raises InvalidInput or RunFailed where that is not possible.
        """
        ...

    def prepared(self, stages: list[str]) -> Mapping[str, StageAddress | str]:
        """See ClusterProcesses."""
        ...

    def enter(self, peers: Mapping[str, PeerAddress], stages: list[str]) -> None:
        """See ClusterProcesses."""
        ...

    def end(self, stages: list[str]) -> None:
        """See ClusterProcesses."""
        ...

    def renamed(self, before: str, after: str) -> None:
        """The process of the stage `before` is that of `after` from now on. What is left of that one ends."""
        ...


class Rounds(Protocol):
    """Where the rounds of the run are: RoundOwner."""

    @property
    def epoch(self) -> int: ...

    @property
    def opened(self) -> int: ...

    @property
    def committed(self) -> int: ...


@dataclass
class _Spare:
    stage: str
    node: str
    setup: StageSetup
    began_s: float
    silence: SilenceDeadline
    phase: Literal["starting", "following", "holds"] = "starting"
    at: StageAddress | None = None


@dataclass(frozen=True)
class TakenPlace:
    """The process of a warm spare listens as `stage`."""

    stage: str
    at: StageAddress


@dataclass(frozen=True)
class SpareNeeds:
    """What warm spares need of a run.

    Attributes:
        setups: makes the setups of all stages by a plan that has other nodes for some.
        check: raises InvalidInput where a process on a node reads other data than the run.
        tell: takes an event, and `notice` a line, for the run's record.
        shadows: chooses who shadows which stage, (cluster, index), of the nodes that are free.
        keys: of an encrypted run, by member.
    """

    setups: Callable[[Plan], Mapping[str, StageSetup]]
    check: Callable[[Mapping[str, StageAddress], Mapping[str, str]], None]
    tell: Callable[[SpareWarmEvent], None]
    notice: Callable[[str], None]
    shadows: Callable[[Plan, Collection[str], Mapping[tuple[str, int], str]], Mapping[tuple[str, int], str]]
    keys: Mapping[str, Keys] | None = None


@dataclass
class WarmSpares:
    """The warm spares of one session."""

    rings: RunRings
    endpoint: Endpoint
    processes: SpareProcesses
    donors: StateDonors
    rounds: Rounds
    needs: SpareNeeds
    _spares: dict[str, _Spare] = field(default_factory=dict)
    """By the spare's transport name."""
    _taking: dict[str, _Spare] = field(default_factory=dict)
    """By the spare's name: those that were told to take a place, and do not listen there yet."""
    _look_s: float | None = 0.0
    """When it is looked next who should shadow what; None: not before something changes."""
    _first: bool = True
    _now_s: float = 0.0
    _alive_s: float = 0.0
    _over: bool = False

    @property
    def holding(self) -> dict[str, str]:
        """By stage: the node of its warm spare, where that holds the anchor."""
        return {each.stage: each.node for each in self._spares.values() if each.phase == "holds"}

    @property
    def nodes(self) -> set[str]:
        """The nodes on which its processes are."""
        return {each.node for each in (*self._spares.values(), *self._taking.values())}

    def turn(self, alive: Callable[[Plan], Collection[str]], now_s: float) -> None:
        """Start what is to shadow, and let what listens follow. `alive`: returns the nodes that can run stages."""
        self._now_s = now_s
        if self._over:
            return
        for name, each in list(self._spares.items()):
            if each.phase != "starting" and each.silence.expired(now_s):
                self.lost(name, f"it has been silent for {each.silence.silent_s(now_s):.0f} s")
            elif each.phase == "starting" and now_s > each.began_s + m.START_DEADLINE_S:
                self.lost(name, f"its process was not ready after {m.START_DEADLINE_S:.0f} s")
        if self._look_s is not None and now_s >= self._look_s:
            self._look_s = None
            self._look(set(alive(self.rings.plan)), now_s)
        starting = [name for name, each in self._spares.items() if each.phase == "starting"]
        for name, at in self.processes.prepared(starting).items() if starting else ():
            self._listens(name, at, now_s)
        for name, each in list(self._spares.items()):
            if each.phase == "following" and not self.donors.serves(name) and now_s >= each.began_s + WITHOUT_DONOR_S:
                self._follow(name, now_s)
        if now_s >= self._alive_s:
            self._alive_s = now_s + m.ALIVE_EVERY_S
            self._tell(m.Alive())

    def observe(self, instruction: ins.Instruction) -> None:
        """Tell the spares and the members of their rings what they need to know of an instruction, once it is
        carried out."""
        match instruction:
            case ins.RecordRoundCommitted():
                self._tell(m.RoundCommittedMessage(round=instruction.round))
            case ins.EpochBegan():
                told = em.RoundsResumedMessage(
                    epoch=instruction.epoch, kept=instruction.kept, hand_on=(), first_round=1
                )
                self._tell(told)
            case ins.ReformRings() if self._spares:
                self._tell_members()
                self._tell(shm.PeersMoved(peers=self.rings.places()))
            case ins.RecordClusterTrains():
                self._look_s = self._now_s  # nodes are where they were not before
            case ins.EnterPhase():
                self.end()

    def take(self, delivery: Delivery, now_s: float) -> TakenPlace | None:
        """Take what a spare says. Returns the place that it has taken, if that is what it says."""
        name, message = delivery.sender, delivery.message
        if isinstance(message, shm.PlaceTaken) and name in self._taking:
            spare = self._taking.pop(name)
            assert spare.at is not None
            at = PeerAddress(message.host, message.pipeline_port, message.bulk_port)
            return TakenPlace(spare.stage, replace(spare.at, peer=at))
        found = self._spares.get(name)
        if found is None:
            return None
        found.silence.heard(now_s)
        restored = self.donors.take_of_spare(name, message, now_s)
        match message:
            case m.StageStarted():
                found.phase = "holds"
                donors = {} if restored is None else dict(restored.donors)
                self.needs.tell(SpareWarmEvent(found.node, found.stage, donors, now_s - found.began_s))
            case shm.FellBehind():
                self.needs.notice(f"the warm spare of {found.stage} begins anew: {message.reason}")
                self._follow(name, now_s)
            case _:
                pass
        return None

    def node_of(self, name: str) -> str:
        """The node on which the process of a spare is."""
        return {**self._taking, **self._spares}[name].node

    def __contains__(self, name: str) -> bool:
        return name in self._spares or name in self._taking

    def take_place(self, stage: str, epoch: int) -> StageSetup:
        """Let the warm spare of a lost stage, which holds the anchor, take its place. Returns the stage's setup."""
        name = spare_name(stage)
        spare = self._taking[name] = self._spares.pop(name)
        self.endpoint.send(name, Lane.PIPELINE, shm.TakePlace(epoch=epoch, round=self.rounds.committed))
        self.processes.renamed(name, stage)
        self.donors.forget_spare(name)
        self._tell_members()
        self.donors.is_warm(stage)
        assert spare.setup.successor is not None
        return spare.setup.successor

    def leave(self, nodes: Collection[str], cluster: str | None = None) -> None:
        """The spares on these nodes end, since something else begins there; and those of a cluster that is cut
        otherwise."""
        gone = [
            name
            for name, each in self._spares.items()
            if each.node in nodes or (cluster is not None and stage_place(each.stage)[0] == cluster)
        ]
        for name in gone:
            self._drop(name)
        if gone:
            self.processes.end(gone)
            self._tell_members()

    def node_left(self, node: str) -> None:
        """A node leaves with notice: no spare stays there, and others may shadow what those did."""
        for name in [name for name, each in self._spares.items() if each.node == node]:
            self.lost(name, f"node {node!r} leaves")

    def lost(self, name: str, reason: str) -> None:
        """The process of a spare is lost, if it is one's: nobody waits for it."""
        spare = self._spares.get(name)
        if spare is None:
            return
        self.needs.notice(f"the warm spare of {spare.stage} on {spare.node!r} is lost: {reason}")
        self._drop(name)
        self.processes.end([name])
        self._tell_members()
        self._look_s = self._now_s + SPARE_AGAIN_S

    def end(self) -> None:
        """The run does not train any more: no spare is needed."""
        if self._over:
            return
        self._over = True
        self._tell(m.Stop())
        for name in list(self._spares):
            self.donors.forget_spare(name)
        self._spares.clear()
        self._tell_members()

    def _look(self, alive: Collection[str], now_s: float) -> None:
        plan, there = self.rings.plan, {setup.cluster for setup in self.rings.setups.values()}
        running = {stage.node for cluster in plan.clusters for stage in cluster.stages}
        if self._first:
            wanted = {stage_name(*of): spare.node for spare in plan.spares for of in spare.shadows}
        else:
            following = {stage_place(each.stage): each.node for each in self._spares.values()}
            free = [node for node in sorted(alive) if node not in running | set(following.values())]
            wanted = {stage_name(*of): node for of, node in self.needs.shadows(plan, free, following).items()}
        self._first = False
        for stage, node in wanted.items():
            usable = node in alive and node not in running and stage_place(stage)[0] in there
            if usable and spare_name(stage) not in self._spares:
                self._start(stage, node, now_s)

    def _start(self, stage: str, node: str, now_s: float) -> None:
        name, (cluster, index) = spare_name(stage), stage_place(stage)
        plan = self.rings.plan
        made = plan.cluster(cluster)
        stages = tuple(replace(each, node=node) if i == index else each for i, each in enumerate(made.stages))
        try:
            successor = self.needs.setups(with_cluster(plan, replace(made, stages=stages), ""))[stage]
            setup = replace(
                successor,
                place=replace(successor.place, cluster=stage_place(name)[0]),
                transport=replace(successor.transport, keys=None if self.needs.keys is None else self.needs.keys[name]),
                initial=(),
                successor=replace(successor, initial=()),
            )
            self.processes.begin_spares(plan, {name: setup}, {name: node})
        except RavnestError as error:
            self.needs.notice(f"{node!r} cannot shadow {stage}: {error}")
            self._look_s = now_s + SPARE_AGAIN_S
            return
        self._spares[name] = _Spare(stage, node, setup, now_s, SilenceDeadline(now_s))

    def _listens(self, name: str, at: StageAddress | str, now_s: float) -> None:
        spare = self._spares[name]
        try:
            if isinstance(at, str):
                self.lost(name, at)
                return
            self.needs.check({name: at}, {name: spare.node})
        except RavnestError as error:
            self.lost(name, str(error))
            return
        spare.at = at
        self.endpoint.connect({name: at.peer})
        self.processes.enter({**self.rings.addresses, m.DRIVER: self.endpoint.address}, [name])
        spare.silence = SilenceDeadline(now_s)
        self._follow(name, now_s)

    def _follow(self, name: str, now_s: float) -> None:
        """Let a spare follow from now on: the members send it the rounds that are still to be opened."""
        spare = self._spares[name]
        spare.phase, spare.began_s = "following", now_s
        self._tell_members()
        begin = shm.FollowFrom(epoch=self.rounds.epoch, round=self.rounds.opened, peers=self.rings.places())
        self.endpoint.send(name, Lane.PIPELINE, begin)
        self.donors.find_for_spare(name, spare.node, [each.ring for each in spare.setup.segments], now_s)

    def _tell_members(self) -> None:
        """Tell all stages of the run who follows their rings."""
        following = {name: each for name, each in self._spares.items() if each.at is not None}
        places = tuple(
            em.PeerPlace(
                stage=name,
                host=each.at.peer.host,
                pipeline_port=each.at.peer.pipeline_port,
                bulk_port=each.at.peer.bulk_port,
            )
            for name, each in following.items()
            if each.at is not None
        )
        for stage, setup in self.rings.setups.items():
            rings = tuple(
                shm.RingFollowers(ring=segment.ring, followers=names)
                for segment in setup.segments
                if (names := tuple(n for n, each in following.items() if _follows(each.setup, segment.ring)))
            )
            self.endpoint.send(stage, Lane.PIPELINE, shm.Followers(rings=rings, peers=places))

    def _drop(self, name: str) -> None:
        del self._spares[name]
        self.donors.forget_spare(name)
        self.endpoint.disconnect([name])

    def _tell(self, message: Message) -> None:
        for name, each in (*self._spares.items(), *self._taking.items()):  # who takes a place hears the driver, too
            if each.at is not None:
                self.endpoint.send(name, Lane.PIPELINE, message)


def _follows(setup: StageSetup, ring: int) -> bool:
    return any(segment.ring == ring for segment in setup.segments)
