"""The donors of stages that join: the driver says who gives what, and carries none of it.

In: stages that need the anchor, what they report of their donors, and losses. Out: orders to the stages, the clusters
that no donor can serve, and where each stage's state came from in the end. `Donors` chooses (ravnest/recovery).
"""

from collections.abc import Callable, Collection
from dataclasses import replace

from ravnest.driver import instructions as ins
from ravnest.driver.run_rings import RunRings
from ravnest.pipeline import stage_place
from ravnest.recovery.donors import Donors, Giver, Need, Restored
from ravnest.stage import donor_messages as dm
from ravnest.stage import messages as m
from ravnest.stage.setup import SegmentSetup
from ring_allreduce.transport import Endpoint, Lane, Message

CHECKPOINT = "checkpoint"
"""What a checkpoint is called among donors."""

KEPT = "itself"
"""What a stage is called among its donors that had kept its anchor."""

WARM = "warm spare"
"""The same of a stage that is the process of its warm spare."""


class StateDonors:
    """Finds donors for stages that join. It belongs to the driver's thread."""

    def __init__(
        self,
        rings: RunRings,
        endpoint: Endpoint,
        on_restored: Callable[[Restored], None],
        notice: Callable[[str], None] = lambda text: None,
    ) -> None:
        """`on_restored` is told of each stage that holds the anchor, and `notice` of donors that fail."""
        self._on_restored = on_restored
        self._notice = notice
        self._rings = rings
        self._endpoint = endpoint
        segments = {each.ring: each for setup in rings.setups.values() for each in setup.segments}
        self._donors = Donors({ring: _bytes_of(segment) for ring, segment in segments.items()})
        self._holds: set[str] = set()
        """The stages that joined, do not train yet, and hold the anchor: they can give it, too."""
        self._spares: dict[str, str] = {}
        """By name: the nodes of warm spares that need the anchor."""
        self._warm: set[str] = set()
        """The stages that were warm spares before they joined."""
        self._from_checkpoint: dict[str, tuple[float, int]] = {}
        """By stage that waits for a checkpoint: since when, and how many bytes that is."""

    def find(self, order: ins.FindDonors, now_s: float) -> None:
        """These stages need the anchor."""
        for stage in order.stages:
            rings = [segment.ring for segment in self._rings.setups[stage].segments]
            self._donors.need(stage, self._node(stage), rings, now_s)

    def find_for_spare(self, name: str, node: str, rings: Collection[int], now_s: float) -> None:
        """A warm spare needs the anchor of these rings, in which it is not."""
        self._spares[name] = node
        self._donors.need(name, node, rings, now_s)

    def serves(self, name: str) -> bool:
        """Whether a stage or warm spare is being given the anchor."""
        return name in self._donors

    def take_of_spare(self, name: str, message: Message, now_s: float) -> Restored | None:
        """Take what a warm spare says, if it is about its state. Returns where its anchor is from, once it holds it."""
        if isinstance(message, m.StageStarted):
            return self._donors.holds(name, now_s)
        self.take(name, message, now_s)
        return None

    def forget_spare(self, name: str) -> None:
        """A warm spare is lost, or is none any more."""
        self._spares.pop(name, None)
        self._donors.gone([name])

    def is_warm(self, stage: str) -> None:
        """A stage that is to join is the process of its warm spare."""
        self._warm.add(stage)

    def take(self, stage: str, message: Message, now_s: float) -> None:
        """Take what a stage says, if it is about its state.

        That it holds the anchor has no effect of a stage that is lost: the word was on its way when that happened.
        """
        match message:
            case dm.SegmentTaken():
                self._donors.taken(Need(stage, message.ring), message.donor, message.bytes)
            case dm.SourceFailed():
                self._donors.failed(Need(stage, message.ring), message.donor)
                if message.donor:
                    self._notice(f"{message.donor} cannot give {stage} its state: {message.reason}")
            case m.StageStarted() if stage in self._rings.setups and stage not in self._rings.training():
                self._hold(stage, now_s)

    def _hold(self, stage: str, now_s: float) -> None:
        """A stage that joined holds the anchor."""
        self._holds.add(stage)
        since = self._from_checkpoint.pop(stage, None)
        restored = self._donors.holds(stage, now_s)
        if since is not None:
            restored = Restored(stage, {CHECKPOINT: since[1]}, now_s - since[0])
        if restored is not None:
            itself = WARM if stage in self._warm else KEPT
            self._on_restored(replace(restored, donors=restored.donors or {itself: 0}))
        self._warm.discard(stage)

    def trains(self, cluster: str) -> None:
        """A cluster that had joined trains: its stages give as others do."""
        self._holds = {stage for stage in self._holds if stage_place(stage)[0] != cluster}

    def lost(self, stages: Collection[str]) -> None:
        """These stages are lost."""
        self._holds -= set(stages)
        self._warm -= set(stages)
        self._donors.gone(stages)
        for stage in stages:
            self._from_checkpoint.pop(stage, None)

    def turn(self, now_s: float) -> list[str]:
        """Tell stages of new donors. Returns the clusters that need a checkpoint, because nobody can give it all."""
        if not self._donors.waiting:
            return []
        able = {*self._rings.training(), *(self._holds & self._rings.setups.keys())}
        holders: dict[int, list[str]] = {}
        for stage, setup in self._rings.setups.items():
            for segment in setup.segments if stage in able else ():
                holders.setdefault(segment.ring, []).append(stage)
        chosen, helpless = self._donors.choose(holders, {stage: self._giver(stage) for stage in able})
        orders: dict[str, list[tuple[int, str]]] = {}
        for need, donor in chosen.items():
            orders.setdefault(need.stage, []).append((need.ring, donor))
        for stage, sources in orders.items():
            self._endpoint.send(stage, Lane.PIPELINE, dm.TakeSegments(sources=tuple(sources)))
        clusters = {stage_place(stage)[0] for stage in helpless if stage not in self._spares}
        for cluster in sorted(clusters):
            self._notice(f"nobody can give {cluster} all of the anchor: it waits for a checkpoint")
        for stage, setup in self._rings.setups.items():
            if stage_place(stage)[0] in clusters and stage not in self._holds:
                self._donors.gone([stage])
                specs = setup.program.weight_specs
                self._from_checkpoint[stage] = now_s, sum(spec.size_bytes for spec in specs)
        return sorted(clusters)

    def _node(self, stage: str) -> str:
        if stage in self._spares:
            return self._spares[stage]
        cluster, index = stage_place(stage)
        return self._rings.plan.cluster(cluster).stages[index].node

    def _giver(self, stage: str) -> Giver:
        node = self._node(stage)
        return Giver(node, self._rings.plan.fleet.node(node).up_bytes_per_s)


def _bytes_of(segment: SegmentSetup) -> float:
    """What the state of a segment takes, but for the outer optimizer's, which is as large for all of them."""
    return 4.0 * sum(spec.elements for spec in segment.rings)
