"""Who gives the state of each segment to the stages that join. Pure.

In: what newcomers need, who holds it, and what became of each donor. Out: a donor for each segment of each newcomer. A
donor gives its uplink, so the next segment comes from whoever would be through with it first: the fewest seconds of
bytes that are promised already, those of this segment included. A donor on the newcomer's own node costs no uplink.
Many that join at once are thus spread over all uplinks, and one that holds its state by now gives it to the next.
"""

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from typing import NamedTuple


class Need(NamedTuple):
    """A segment, by its ring, that a stage needs."""

    stage: str
    ring: int


@dataclass(frozen=True)
class Giver:
    """A stage that can give: the node it is on, and that node's uplink."""

    node: str
    up_bytes_per_s: float


@dataclass(frozen=True)
class Restored:
    """Where a stage got its state from: the bytes of each donor, and the seconds in all."""

    stage: str
    donors: Mapping[str, int]
    seconds: float


@dataclass
class _Newcomer:
    node: str
    began_s: float
    missing: set[int]
    donors: dict[int, str] = field(default_factory=dict)
    """By ring that is on its way: who gives it."""
    failed: set[tuple[int, str]] = field(default_factory=set)
    got: dict[str, int] = field(default_factory=dict)


class Donors:
    """Chooses donors for stages that join."""

    def __init__(self, ring_bytes: Mapping[int, float]) -> None:
        """`ring_bytes`: what the state of each ring's segment takes."""
        self._ring_bytes = ring_bytes
        self._newcomers: dict[str, _Newcomer] = {}
        self._changed = False

    def __contains__(self, stage: str) -> bool:
        return stage in self._newcomers

    @property
    def waiting(self) -> bool:
        """Whether somebody has no donor yet: then `choose` has something to do."""
        return self._changed

    def need(self, stage: str, node: str, rings: Collection[int], now_s: float) -> None:
        """A stage on this node needs the segments of these rings."""
        self._newcomers[stage] = _Newcomer(node, now_s, set(rings))
        self._changed = True

    def taken(self, need: Need, donor: str, n_bytes: int) -> None:
        """A stage has all of a segment."""
        newcomer = self._newcomers.get(need.stage)
        if newcomer is not None and newcomer.donors.get(need.ring) == donor:
            newcomer.missing.discard(need.ring)
            del newcomer.donors[need.ring]
            newcomer.got[donor] = newcomer.got.get(donor, 0) + n_bytes

    def failed(self, need: Need, donor: str) -> None:
        """A donor has failed a stage, which is not sent to it again. An empty name: what it gave has become useless."""
        newcomer = self._newcomers.get(need.stage)
        if newcomer is None or donor not in ("", newcomer.donors.get(need.ring)):
            return
        newcomer.donors.pop(need.ring, None)
        newcomer.missing.add(need.ring)
        newcomer.failed.add((need.ring, donor))
        self._changed = True

    def holds(self, stage: str, now_s: float) -> Restored | None:
        """A stage holds its state: it needs nothing more. Returns where it is from; None where nobody was to give."""
        newcomer = self._newcomers.pop(stage, None)
        return None if newcomer is None else Restored(stage, newcomer.got, now_s - newcomer.began_s)

    def gone(self, stages: Collection[str]) -> None:
        """These stages are lost: they need nothing, and what they were to give comes from others."""
        for stage in stages:
            self._newcomers.pop(stage, None)
        for newcomer in self._newcomers.values():
            for ring in [ring for ring, donor in newcomer.donors.items() if donor in stages]:
                newcomer.failed.add((ring, newcomer.donors.pop(ring)))
                self._changed = True

    def choose(
        self, holders: Mapping[int, Collection[str]], givers: Mapping[str, Giver]
    ) -> tuple[dict[Need, str], list[str]]:
        """Choose a donor for each segment that has none.

        `holders`: by ring, the stages that hold its anchor. `givers`: those of them that can give. Returns the new
        donors, and the stages that nobody can give all that they need; those are forgotten.
        """
        self._changed = False
        chosen: dict[Need, str] = {}
        helpless: list[str] = []
        wanted = {
            Need(stage, ring): [
                donor
                for donor in holders.get(ring, ())
                if donor in givers and donor != stage and (ring, donor) not in newcomer.failed
            ]
            for stage, newcomer in self._newcomers.items()
            for ring in sorted(newcomer.missing - newcomer.donors.keys())
        }
        for need in sorted(wanted, key=lambda need: (len(wanted[need]), -self._ring_bytes[need.ring])):
            newcomer, able = self._newcomers[need.stage], wanted[need]
            if not able:
                helpless.append(need.stage)
                continue
            promised = self._promised(givers)
            donor = min(able, key=lambda each: (self._seconds(need, givers[each], promised), each))
            newcomer.donors[need.ring] = chosen[need] = donor
        for stage in helpless:
            self._newcomers.pop(stage, None)
        return {need: donor for need, donor in chosen.items() if need.stage not in helpless}, sorted(set(helpless))

    def _promised(self, givers: Mapping[str, Giver]) -> dict[str, float]:
        """By node, the bytes that its uplink is still to carry."""
        promised: dict[str, float] = {}
        for newcomer in self._newcomers.values():
            for ring, donor in newcomer.donors.items():
                node = givers[donor].node if donor in givers else newcomer.node
                if node != newcomer.node:
                    promised[node] = promised.get(node, 0.0) + self._ring_bytes[ring]
        return promised

    def _seconds(self, need: Need, giver: Giver, promised: Mapping[str, float]) -> float:
        if giver.node == self._newcomers[need.stage].node:
            return 0.0
        return (promised.get(giver.node, 0.0) + self._ring_bytes[need.ring]) / max(giver.up_bytes_per_s, 1.0)
