"""A scenario that is acted out on the machines of a rehearsal: they stand still, are lost, leave with notice, and come.

In: a `Scenario`, the time, and the processes of the stages. Out: signals to processes, and requests, as users make
them. A machine that is lost without a word stands still here: its processes are stopped, so that silence is all that
tells of it. One that is back has lost what it held. Seconds of the scenario count from the first training of the run,
in the time of the imitated machines.
"""

import math
import signal
from collections.abc import Collection, Iterable
from typing import Protocol

from ravnest.driver.node_requests import NodeRequest
from ravnest.errors import InvalidInput
from ravnest.recovery import NodesLeft
from ravnest.simulator import NodeChange, Scenario
from ravnest.simulator.presence import absent_at_first
from ravnest.simulator.scenario import TOLD_S

_ACTED = frozenset({"stalls", "deaths", "kills", "leaves", "joins", "trace"})
"""The fields of a scenario that are acted out. What is timed by the simulator alone (`restart_s`) takes as long as it
takes here."""
_TIMED = frozenset({"restart_s", "control_latency_s", "plans_anew"})


class Processes(Protocol):
    """Who has started the processes of stages on this machine."""

    def on_node(self, node: str) -> list[str]:
        """The stages that have been started on a node."""
        ...

    def send(self, stages: Iterable[str], what: signal.Signals) -> None:
        """Send a signal to the processes of these stages, and all that they have started."""
        ...

    def machine_gone(self, node: str) -> None:
        """What waits on a node to become a stage is gone with its machine."""
        ...


class Acting:
    """Acts out a scenario in all sessions of one rehearsal. It belongs to the driver's thread."""

    def __init__(self, scenario: Scenario, speed: float) -> None:
        """Raises InvalidInput, which names the key, for what a rehearsal cannot act out."""
        usual = Scenario()
        for key, value in vars(scenario).items():
            if key not in _ACTED | _TIMED and value != getattr(usual, key):
                raise InvalidInput("a rehearsal does not act this out: `ravnest simulate` does", key=key)
        self._speed = speed
        self._changes = scenario.changes()
        self.absent = frozenset(absent_at_first(self._changes))
        """The nodes that are not there at first."""
        self._doing: list[tuple[float, str, NodeChange]] = []
        for change in self._changes:
            self._doing.append((change.at_s, change.kind, change))
            if change.kind == "gone" and math.isfinite(change.until_s):
                self._doing.append((change.until_s, "back", change))
        for stall in scenario.stalls:
            change = NodeChange(stall.at_s, stall.node, "gone")
            self._doing += [(stall.at_s, "stalls", change), (stall.at_s + stall.for_s, "goes on", change)]
        self._doing.sort(key=lambda each: each[0], reverse=True)
        self._began_s: float | None = None
        self._gone: dict[str, list[str]] = {}
        """By node that is gone: the stages whose processes stand still for it."""

    def turn(self, now_s: float, processes: Processes, left: NodesLeft) -> list[NodeRequest]:
        """Do what is due while the run trains. Returns what the nodes ask for."""
        if self._began_s is None:
            self._began_s = now_s
            for node in self.absent:
                left.leave(node)
        out: list[NodeRequest] = []
        while self._doing and self._doing[-1][0] <= (now_s - self._began_s) * self._speed:
            _, kind, change = self._doing.pop()
            stages = processes.on_node(change.node)
            match kind:
                case "stalls":
                    processes.send(stages, signal.SIGSTOP)
                case "goes on" if change.node not in self._gone:
                    processes.send(stages, signal.SIGCONT)
                case "ended":
                    processes.send(stages, signal.SIGKILL)
                case "gone":
                    left.leave(change.node)
                    silent = change.noticed_after_s > TOLD_S
                    processes.send(stages, signal.SIGSTOP if silent else signal.SIGKILL)
                    processes.machine_gone(change.node)
                    self._gone[change.node] = stages
                case "notice":
                    out.append(NodeRequest("leave", change.node, change.why))
                case "back":
                    still = set(self._gone.pop(change.node, ())) & set(stages)
                    processes.send(still, signal.SIGKILL)
                    out.append(NodeRequest("join", change.node, change.why))
        return out

    def there(self, nodes: Collection[str]) -> set[str]:
        """Those of these nodes that are there at the start."""
        return set(nodes) - self.absent
