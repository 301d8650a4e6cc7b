"""Rounds of a simulated run: the driver that opens, commits and ends them, and lets clusters leave and join.

`RoundOwner` decides, as in a real run; members.py has the stages' side. A lost cluster leaves the rings in the next
epoch (decision 65). One that joins follows the rounds without weight. Ring members send its stages the anchor, and it
trains once all of them hold it (decisions 70 and 79).
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from ravnest.errors import RunFailed
from ravnest.pipeline import events as ev
from ravnest.recovery import RETURNS_S, Way
from ravnest.simulator.clock import Action
from ravnest.simulator.fleet import VirtualFleet, VirtualRing
from ravnest.simulator.handed_progress import HandedProgress
from ravnest.simulator.members import RingPart, RoundsMember
from ravnest.simulator.stage import RunningStage, SimulatedWorld
from ring_allreduce import rounds


@dataclass
class _Newcomer:
    missing: set[str]
    """Its stages that do not hold the anchor yet."""
    first_round: int | None = None
    """The first round that it takes part in; None before its epoch has begun."""
    held: Collection[tuple[str, str]] = ()
    """By stage and ring: the pieces of the anchor that it has already."""
    donors: dict[tuple[str, str], str] | None = None
    """By stage and ring: who sends that piece of the anchor. None before it is on its way."""


class VirtualRounds:
    """All rounds of one simulated run."""

    def __init__(self, fleet: VirtualFleet, stages: Mapping[str, RunningStage], world: SimulatedWorld) -> None:
        """`stages`: by name."""
        self._world = world
        self._clock = world.clock
        self._fleet = fleet
        self._latency_s = fleet.control_latency_s
        self._clusters = {
            cluster.name: tuple(stages[who] for who in cluster.stage_names()) for cluster in fleet.clusters
        }
        rings = {f"ring{index}": ring for index, ring in enumerate(fleet.rings)}
        self._owner = rounds.RoundOwner(
            {name: ring.members for name, ring in rings.items()},
            fleet.average_every,
            max_lag=fleet.max_lag,
            on_loss="reform",
            clusters={who: stage.cluster for who, stage in stages.items()},
        )
        self._rings = rings
        self._formed: dict[int, dict[str, VirtualRing]] = {}
        """By epoch: the rings as they were formed again. A stage may hear of an epoch when a later one has begun."""
        self._parts: dict[str, dict[str, RingPart]] = {name: {} for name in rings}
        self._members: dict[str, RoundsMember] = {}
        for who, stage in stages.items():
            self._add(who, RoundsMember(stage, self, fleet.max_lag))
        self._newcomers: dict[str, _Newcomer] = {}
        self.on_trains: Callable[[str], None] | None = None
        """Is called with each cluster that trains again."""
        self.on_commit: Callable[[int], None] | None = None
        """Is called with each round that is committed."""
        self.on_late: Callable[[str, int], None] | None = None
        """Is called with a lost cluster, and the samples of it that are averaged now, when a round is committed to
        which it had contributed."""
        self.leaving: dict[str, str] = {}
        """The clusters that leave with notice, with the reason."""
        self.on_left: Callable[[str, str], object] | None = None
        """Is called with the first stage of each cluster that leaves with notice, and the reason, once all that the
        cluster has made is averaged: it is to be lost then."""
        self.handed = HandedProgress()
        """What clusters that leave hand on."""
        self._drained_updates: dict[str, int] = {}
        self._contributions: dict[int, dict[str, int]] = {}
        """By round that is not committed: each cluster's samples at its snapshot, as its last stage counts them."""
        self.averaged = dict.fromkeys(self._clusters, 0)
        """By cluster: its samples at its snapshot for the last round that was committed."""
        self.opened_s: list[float] = []
        """When each round was opened, in order."""
        self.committed_s: list[float] = []
        """When each round was committed, in order."""

    @property
    def opened(self) -> int:
        """The number of the last round that was opened."""
        return self._owner.opened

    # At the driver.

    def trained(self, told: tuple[str, int]) -> None:
        """The driver hears that a cluster has trained on so many samples in all."""
        if self._rings and told[0] in self._clusters:
            self.own(rounds.SamplesReported(*told))

    def drained(self, told: tuple[str, int]) -> None:
        """The driver hears that a cluster has drained, after so many updates."""
        cluster, updates = told
        if cluster not in self._clusters:
            return
        self._drained_updates[cluster] = updates
        # The report of its last update may come later than this one, and without samples no last round is opened.
        self.trained((cluster, updates * self._fleet.update_every * self._fleet.micro_batch))
        self._finish_rounds(cluster)
        self._when_all_drained()
        self._let_go()

    def lose(self, who: str, reason: str, *, returns: bool = False) -> bool:
        """The driver notices that a stage is lost: its cluster leaves, and `returns` where warm spares take all places.
        Returns whether one is left that trains."""
        cluster = self._members[who].stage.cluster
        for stage in self._clusters.pop(cluster, ()):
            stage.die()
        self.handed.lost(cluster, self._clusters)
        self._newcomers.pop(cluster, None)
        self._drained_updates.pop(cluster, None)
        self.leaving.pop(cluster, None)
        self._find_other_donors(cluster)
        if not set(self.training) - self.leaving.keys():
            for stages in self._clusters.values():
                for stage in stages:
                    stage.die()
            return False
        if self._rings:
            self.own(rounds.MemberLost(who, reason, returns=returns))
            if returns:
                self._clock.after(RETURNS_S, self.own, rounds.ReturnGivenUp(cluster))
        self._when_all_drained()
        return True

    @property
    def clusters(self) -> Collection[str]:
        """The clusters that are in the run."""
        return self._clusters.keys()

    @property
    def training(self) -> list[str]:
        """The clusters that train: not lost, and none that follows only."""
        return [name for name in self._clusters if name not in self._newcomers]

    @property
    def following(self) -> list[str]:
        """The clusters that have joined and do not train yet."""
        return list(self._newcomers)

    def stages(self, cluster: str) -> Sequence[RunningStage]:
        """The stages of a cluster; none where it is not in the run."""
        return self._clusters.get(cluster, ())

    def rings_of(self, who: str) -> list[str]:
        """The rings in which a stage is, or was when its cluster was lost."""
        return list(self._members[who].parts)

    def members(self, ring: str) -> list[str]:
        """The stages of a ring that train."""
        inside = {stage.who for name in self.training for stage in self._clusters[name]}
        return [who for who in self._parts[ring] if who in inside]

    def elements(self, ring: str) -> int:
        """How many numbers a ring averages."""
        return self._rings[ring].elements

    def leave(self, cluster: str, reason: str) -> bool:
        """A cluster leaves with notice, once it has drained. False where it does not: no other one would train."""
        if cluster not in self.training or not set(self.training) - {cluster, *self.leaving}:
            return False
        self.leaving.setdefault(cluster, reason)
        self.control(lambda _: self._let_go(), None)
        return True

    def request(self) -> None:
        """A round is needed now."""
        if self._rings and self._owner.opened == self._owner.committed:
            self._carry_out(rounds.RoundRequested())

    def _let_go(self) -> None:
        """Let clusters go that leave, and whose samples are averaged or with another one. Others get a round."""
        per_update = self._fleet.update_every * self._fleet.micro_batch
        for cluster, reason in tuple(self.leaving.items()):
            if cluster not in self.leaving:  # went with the one before
                continue
            updates = self._drained_updates.get(cluster)
            drained, made = updates is not None, self._clusters[cluster][-1].machine.version
            if (drained and not self._rings) or self.handed.may_go(
                cluster, self.averaged[cluster], (made if updates is None else updates) * per_update, drained=drained
            ):
                if self.on_left is not None:
                    self.on_left(self._clusters[cluster][0].who, reason)
                continue
            staying = sorted(set(self.training) - self.leaving.keys(), key=self._seconds_of)
            for way in self.handed.begin(cluster, staying, self._owner.rings):
                self.control(self._parts[way.ring][way.giver].hand_on_progress, way)
            if drained:
                self.request()

    def _seconds_of(self, cluster: str) -> tuple[float, str]:
        """How long the slowest stage of a cluster computes for a micro-batch."""
        return max(each.times.forward_s + each.times.backward_s for each in self._clusters[cluster]), cluster

    def progress_came(self, came: tuple[Way, int]) -> None:
        """What a stage has made, in so many updates, is with another one."""
        way, updates = came
        if self.handed.arrived(way, updates * self._fleet.update_every * self._fleet.micro_batch):
            self.control(lambda _: self._let_go(), None)

    def goes_on_at(self, cluster: str) -> int:
        """The samples of a cluster that need not be made again when it begins anew."""
        return self.handed.goes_on_at(cluster, self.averaged[cluster])

    def join(
        self,
        cluster: str,
        stages: Sequence[RunningStage],
        fleet: VirtualFleet,
        held: Collection[tuple[str, str]] = (),
    ) -> None:
        """The processes of a cluster that was lost, or is new, are there: they follow the rounds from now on.

        `fleet`: as it is now, with the rings that there were. `held`: the pieces of the anchor, as (stage, ring), that
        they have already.
        """
        self.averaged.setdefault(cluster, 0)
        self._fleet = fleet
        self._rings = {f"ring{index}": ring for index, ring in enumerate(fleet.rings)}
        self._clusters[cluster] = tuple(stages)
        self._newcomers[cluster] = _Newcomer({stage.who for stage in stages}, held=held)
        for stage in stages:
            member = RoundsMember(stage, self, self._fleet.max_lag, joins=True)
            member.contributed = self.goes_on_at(cluster)
            self._add(stage.who, member)
        members = {stage.who: tuple(self._members[stage.who].parts) for stage in stages}
        self.own(rounds.ClusterJoined(cluster, members))

    def _add(self, who: str, member: RoundsMember) -> None:
        self._members[who] = member
        for name, ring in self._rings.items():
            self._parts[name].pop(who, None)  # with other cuts a stage of this name may have held this ring before
            if who in ring.members:
                part = self._parts[name][who] = RingPart(name, ring, member, self._world)
                part.others = self._parts[name]
                for other in part.others.values():
                    other.paths.pop(who, None)  # the stage may be on another node than before
                member.parts[name] = part

    def holds(self, who: str) -> None:
        """A stage that joins holds the anchor. Its cluster trains once all its stages do."""
        cluster = self._members[who].stage.cluster
        newcomer = self._newcomers.get(cluster)
        if newcomer is None:
            return
        newcomer.missing.discard(who)
        if newcomer.missing:
            return
        del self._newcomers[cluster]
        updates = self.goes_on_at(cluster) // (self._fleet.update_every * self._fleet.micro_batch)
        for stage in self._clusters[cluster]:
            self.control(self._members[stage.who].train, (self._owner.opened, updates))
        if self.on_trains is not None:
            self.on_trains(cluster)

    def _send_anchor(self, number: int) -> None:
        """The round `number` is committed: whoever can use its anchor and has none gets it from ring members."""
        promised: dict[str, float] = {}
        for cluster, newcomer in self._newcomers.items():
            early = newcomer.first_round is None or number < newcomer.first_round - 1
            if newcomer.donors is not None or early:
                continue
            newcomer.donors = {}
            for stage in self._clusters[cluster]:
                member = self._members[stage.who]
                member.awaits = {name for name in member.parts if (stage.who, name) not in newcomer.held}
                for name in sorted(member.awaits):
                    self._ask_donor(newcomer, stage.who, name, promised)
                if not member.awaits:
                    self.control(self.holds, stage.who)

    def _ask_donor(self, newcomer: _Newcomer, who: str, ring: str, promised: dict[str, float]) -> None:
        donor = self._donor(ring, promised)
        if newcomer.donors is not None:
            newcomer.donors[who, ring] = donor.who
        self.control(donor.send_state, who)

    def _find_other_donors(self, lost: str) -> None:
        """Others send what stages of a lost cluster were to send, where any are left that train."""
        promised: dict[str, float] = {}
        for newcomer in self._newcomers.values() if self.training else ():
            for (who, ring), donor in tuple((newcomer.donors or {}).items()):
                if self._members[donor].stage.cluster == lost and ring in self._members[who].awaits:
                    self._ask_donor(newcomer, who, ring, promised)

    def _donor(self, ring: str, promised: dict[str, float]) -> RingPart:
        """The member of a ring that trains and whose uplink has sent its state, and what it has `promised` (bytes, by
        machine), soonest."""
        inside = {stage.who for name in self.training for stage in self._clusters[name]}
        nodes, node_of, parts = self._fleet.nodes, self._fleet.node_of, self._parts[ring]
        n_bytes = self._rings[ring].elements * self._rings[ring].state_bytes

        def takes_s(who: str) -> float:
            machine = node_of.get(who)
            return 0.0 if machine is None else (promised.get(machine, 0.0) + n_bytes) / nodes[machine].up_bytes_per_s

        best = min((who for who in parts if who in inside), key=takes_s)
        if best in node_of:
            promised[node_of[best]] = promised.get(node_of[best], 0.0) + n_bytes
        return parts[best]

    def _when_all_drained(self) -> None:
        if self._rings and len(self._drained_updates) == len(self._clusters):
            self.own(rounds.FinishRequested())

    def own(self, event: rounds.OwnerEvent) -> None:
        """Give the owner of the rounds an event, and carry out what it answers."""
        self._carry_out(event)
        unsettled = {name for taken in self._contributions.values() for name in taken.keys() - self._clusters.keys()}
        self.handed.give_on(unsettled, self._owner.opened)
        self._let_go()

    def _carry_out(self, event: rounds.OwnerEvent) -> None:
        for instruction in self._owner.handle(event, self._clock.now_s):
            match instruction:
                case rounds.OpenRound(number):
                    self.opened_s.append(self._clock.now_s)
                    for cluster, stages in self._clusters.items():
                        # A drained cluster sends no more gradients to stamp: it contributes what it has.
                        if cluster in self._newcomers:
                            self._follow_rounds(cluster)
                        elif cluster in self._drained_updates:
                            self._finish_rounds(cluster)
                        else:
                            self.control(stages[-1].tell, ev.RoundOpened(number))
                case rounds.CommitRound(number):
                    self.committed_s.append(self._clock.now_s)
                    self._count(number, self._contributions.pop(number, {}))
                    self._tell_members(instruction)
                    self._send_anchor(number)
                    if self.on_commit is not None:
                        self.on_commit(number)
                case rounds.Reform(epoch, members):
                    self._formed[epoch] = {
                        name: self._fleet.divide_again(ring, members[name]) for name, ring in self._rings.items()
                    }
                    self._tell_members(instruction)
                case rounds.Resume():
                    self._forget_contributions(instruction.kept)
                    self._tell_members(instruction)
                    for cluster, newcomer in self._newcomers.items():
                        first = instruction.first_rounds
                        newcomer.first_round = max(first[stage.who] for stage in self._clusters[cluster])
                        self._follow_rounds(cluster)
                    self._send_anchor(self._owner.committed)
                case rounds.FailRun(reason):
                    raise RunFailed(reason)

    def _tell_members(self, order: rounds.CommitRound | rounds.Reform | rounds.Resume) -> None:
        for stages in self._clusters.values():
            for stage in stages:
                self.control(self._members[stage.who].hear, order)

    def _count(self, number: int, taken: Mapping[str, int]) -> None:
        self.averaged |= taken
        for cluster, samples in self.handed.committed(number).items():
            self.averaged[cluster] = max(samples, self.averaged[cluster])
        for cluster in taken.keys() - set(self.training):
            if self.on_late is not None:
                self.on_late(cluster, taken[cluster])

    def _forget_contributions(self, kept: Collection[int]) -> None:
        """Rounds that are not `kept` start again, without what lost clusters gave to them."""
        for number, taken in self._contributions.items():
            for cluster in () if number in kept else taken.keys() - self._clusters.keys():
                del taken[cluster]

    def _follow_rounds(self, cluster: str) -> None:
        for stage in self._clusters[cluster]:
            self.control(self._members[stage.who].follow, self._owner.opened)

    def _finish_rounds(self, cluster: str) -> None:
        for stage in self._clusters[cluster]:
            self.control(stage.tell, ev.RoundsToFinish(self._owner.opened, self._drained_updates[cluster]))

    def control(self, action: Action, argument: Any) -> None:
        """Call `action` after the time that a message between the driver and a stage takes."""
        self._clock.after(self._latency_s, action, argument)

    # At the stages.

    def contributed(self, stage: RunningStage, number: int, samples: int) -> None:
        """A stage has taken its snapshot for a round, having trained on `samples` in all."""
        if stage is self._clusters[stage.cluster][-1]:
            self._contributions.setdefault(number, {})[stage.cluster] = samples
        self._members[stage.who].contribute(number, samples)

    def ring(self, name: str, epoch: int) -> VirtualRing:
        """Return a ring as it is in an epoch."""
        return self._formed[epoch][name]
