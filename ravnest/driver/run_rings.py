"""The rings of a run as clusters come and go: who is in them, how they divide their vectors, who keeps what. Pure.

In: the plan, the setups of all stages, and orders to reform rings. Out: what each stage is told of its rings, and the
setups as they are then. The driver alone computes a ring, as at the launch, because two machines could come to
different shares of equal worth.
"""

from collections.abc import Mapping
from dataclasses import replace

from cluster_planner import Plan, RingMember
from ravnest.driver.instructions import ReformRings
from ravnest.driver.stage_setups import keeper, ring_spec
from ravnest.stage import epoch_messages as em
from ravnest.stage import messages as m
from ravnest.stage.setup import SegmentSetup, StageSetup
from ring_allreduce import RingSpec
from ring_allreduce.rounds import Resume
from ring_allreduce.transport import PeerAddress


class RunRings:
    """Knows the setups of all stages of the plan, and which of them are in the run."""

    def __init__(
        self, plan: Plan, setups: Mapping[str, StageSetup], addresses: Mapping[str, PeerAddress] | None = None
    ) -> None:
        """`addresses`: where each stage listens. Without them no cluster can join."""
        self.plan = plan
        """The plan, with the nodes that the stages are on now."""
        self._all = dict(setups)
        self._addresses = dict(addresses or {})
        self._following: tuple[str, ...] = ()
        self._epoch = 0
        self.setups = dict(setups)
        """By name: the stages that are in the run, with the rings that they have now."""

    def of_cluster(self, cluster: str) -> dict[str, StageSetup]:
        """The setups of a cluster's stages, by name, whether it is in the run or not."""
        return {name: setup for name, setup in self._all.items() if setup.cluster == cluster}

    def members(self, cluster: str) -> dict[str, tuple[str, ...]]:
        """The names of the rings of each of a cluster's stages."""
        return {
            name: tuple(str(segment.ring) for segment in setup.segments)
            for name, setup in self.of_cluster(cluster).items()
        }

    def begin_anew(self, plan: Plan, setups: Mapping[str, StageSetup], addresses: Mapping[str, PeerAddress]) -> None:
        """These stages begin anew, at these addresses, by this plan. It may place them on other nodes, or cut their
        clusters otherwise: `setups` has all stages that these clusters have now."""
        self.plan = plan
        begun = {setup.cluster for setup in setups.values()}
        self._all = {name: setup for name, setup in self._all.items() if setup.cluster not in begun} | dict(setups)
        self._addresses |= addresses

    def fit(self, setups: Mapping[str, StageSetup]) -> bool:
        """Say whether these stages average the same vectors in the same rings as all others do."""
        known = {segment.ring: _averaged(segment) for setup in self._all.values() for segment in setup.segments}
        return all(known.get(each.ring) == _averaged(each) for setup in setups.values() for each in setup.segments)

    def training(self) -> dict[str, StageSetup]:
        """The setups of the stages in the run whose clusters train."""
        return {name: setup for name, setup in self.setups.items() if setup.cluster not in self._following}

    def trains(self, cluster: str) -> None:
        """A cluster that followed the rounds trains now."""
        self._following = tuple(name for name in self._following if name != cluster)

    def reform(self, order: ReformRings) -> dict[str, em.RingsReformedMessage]:
        """Take new members of the rings. Returns what each stage is told, by its name."""
        clusters = {cluster.name: place for place, cluster in enumerate(self.plan.clusters)}
        places = {name: (clusters[setup.cluster], setup.index) for name, setup in self._all.items()}
        members = {int(ring): sorted(names, key=places.__getitem__) for ring, names in order.rings.items()}
        inside = {name for names in members.values() for name in names}
        came = inside - self.setups.keys()
        stages = {name: (setup.cluster, setup.index) for name, setup in self._all.items()}
        segments = {
            segment.ring: self._among(segment, [stages[name] for name in members[segment.ring]])
            for name in inside
            for segment in self._all[name].segments
        }
        self._following, self._epoch = order.following, order.epoch
        keepers = {
            ring: keeper(self.plan, [stages[name] for name in names if stages[name][0] not in order.following])
            for ring, names in members.items()
        }
        self.setups = {
            name: replace(setup, segments=tuple(self._held(segments, keepers, stages[name], setup)))
            for name, setup in self._all.items()
            if name in inside
        }
        peers = self.places() if came else ()
        return {name: _told(order, setup, peers) for name, setup in self.setups.items()}

    def members_of(
        self, stage: str, seen: em.ContributionsSeen | em.MemberRefused | m.RingFinishedMessage
    ) -> tuple[str, ...]:
        """The members of the ring of which the stage tells; none where it is not in that ring now, tells of others than
        its members, or names an epoch that has not begun."""
        told = {*seen.members, *seen.digests} if isinstance(seen, em.ContributionsSeen) else set[str]()
        told |= {seen.member} if isinstance(seen, em.MemberRefused) else set()
        for each in self.setups[stage].segments if stage in self.setups else ():
            if each.ring == seen.ring and told <= {*each.members} and seen.epoch <= self._epoch:
                return each.members
        return ()

    @property
    def addresses(self) -> dict[str, PeerAddress]:
        """Where each stage of the run listens."""
        return {name: at for name, at in self._addresses.items() if name in self.setups}

    def places(self) -> tuple[em.PeerPlace, ...]:
        """Where all stages of the run listen. Whoever comes is told of all, and all are told of who comes."""
        return tuple(
            em.PeerPlace(stage=name, host=at.host, pipeline_port=at.pipeline_port, bulk_port=at.bulk_port)
            for name, at in self.addresses.items()
        )

    def _among(self, segment: SegmentSetup, members: list[RingMember]) -> SegmentSetup:
        """The segment with rings of these members."""

        def again(spec: RingSpec | None) -> RingSpec | None:
            return None if spec is None else self._again(spec, members)

        return replace(
            segment,
            progress=self._again(segment.progress, members),
            averaged_buffers=again(segment.averaged_buffers),
            taken_buffers=again(segment.taken_buffers),
        )

    def _again(self, spec: RingSpec, members: list[RingMember]) -> RingSpec:
        return ring_spec(self.plan, members, spec.name, spec.elements, spec.wire, spec.robust)

    @staticmethod
    def _held(
        segments: Mapping[int, SegmentSetup],
        keepers: Mapping[int, RingMember],
        stage: RingMember,
        setup: StageSetup,
    ) -> list[SegmentSetup]:
        """The segments of one stage, which says for each of them how many of its cluster's stages hold it."""
        return [
            replace(segments[old.ring], keeper=keepers[old.ring] == stage, copies=old.copies, frozen=old.frozen)
            for old in setup.segments
        ]


def _averaged(segment: SegmentSetup) -> tuple[tuple[str, ...], ...]:
    """What members of a ring must have in common."""
    return segment.parameters, segment.buffers, segment.taken, segment.counters


def rounds_resumed(order: Resume, first_round: int) -> em.RoundsResumedMessage:
    """What a stage is told when an epoch is under way."""
    hand_on = tuple((int(ring), number, holder, to) for ring, number, holder, to in order.hand_on)
    return em.RoundsResumedMessage(epoch=order.epoch, kept=order.kept, hand_on=hand_on, first_round=first_round)


def _told(order: ReformRings, setup: StageSetup, peers: tuple[em.PeerPlace, ...]) -> em.RingsReformedMessage:
    rings = tuple(
        em.ReformedRing(
            ring=segment.ring,
            members=segment.members,
            divisions=tuple(_division(spec) for spec in segment.rings),
            keeper=segment.keeper,
        )
        for segment in setup.segments
    )
    return em.RingsReformedMessage(
        epoch=order.epoch, committed=order.committed, rings=rings, lost=order.lost, peers=peers
    )


def _division(spec: RingSpec) -> em.RingDivision:
    return em.RingDivision(spec.chunk_elements, spec.shares, spec.direct, spec.groups)
