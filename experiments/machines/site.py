"""The lab that profiles are compared with: machines of two regions with asymmetric links, and what is true of them."""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import combinations, permutations


@dataclass(frozen=True)
class Machine:
    name: str
    region: str
    up_mbps: float
    down_mbps: float


MACHINES: Sequence[Machine] = (
    Machine("fra-desktop", "fra", 100.0, 60.0),
    Machine("fra-laptop", "fra", 50.0, 100.0),
    Machine("iad-desktop", "iad", 40.0, 80.0),
    Machine("iad-mini", "iad", 20.0, 50.0),
)
ROUND_TRIP_MS = {frozenset({"fra"}): 12.0, frozenset({"iad"}): 20.0, frozenset({"fra", "iad"}): 92.0}


@dataclass(frozen=True)
class Site:
    """`machines` of the lab; the first is Ray's head."""

    machines: Sequence[Machine]

    @property
    def names(self) -> list[str]:
        return [machine.name for machine in self.machines]

    def one_way_s(self, a: str, b: str) -> float:
        regions = frozenset({self._machine(a).region, self._machine(b).region})
        return ROUND_TRIP_MS[regions] / 2e3

    def pairs(self) -> list[tuple[str, str, float]]:
        """Each pair and its delay in one direction, in seconds."""
        return [(a, b, self.one_way_s(a, b)) for a, b in combinations(self.names, 2)]

    def flows(self) -> dict[tuple[str, str], float]:
        """Mbit/s that one flow can have, by (sender, receiver)."""
        return {
            (a, b): min(self._machine(a).up_mbps, self._machine(b).down_mbps) for a, b in permutations(self.names, 2)
        }

    def fillable(self) -> dict[tuple[str, str], float]:
        """("up" or "down", machine) → Mbit/s, where the other machines together can fill it: no other can be seen."""
        found = {}
        for machine in self.machines:
            others = [other for other in self.machines if other is not machine]
            if sum(other.down_mbps for other in others) > 1.05 * machine.up_mbps:
                found["up", machine.name] = machine.up_mbps
            if sum(other.up_mbps for other in others) > 1.05 * machine.down_mbps:
                found["down", machine.name] = machine.down_mbps
        return found

    def _machine(self, name: str) -> Machine:
        return next(machine for machine in self.machines if machine.name == name)
