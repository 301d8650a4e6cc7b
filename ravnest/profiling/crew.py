"""Who acts on the nodes, and how many are asked at once: the same for a cluster of Ray's and for this machine alone.

An answer that does not come, or comes as an error of ravnest's, is an `Unanswered` that says why; nothing is raised, so
that one silent node spoils nobody else's measurement.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from ravnest.errors import RavnestError
from ravnest.profiling.agents import MachineAgent


@dataclass(frozen=True)
class Member:
    """A node that an agent acts on. `cores`: what a stage there may use."""

    name: str
    address: str | None
    cores: int


@dataclass(frozen=True)
class Call:
    """Of a MachineAgent's method."""

    member: str
    method: str
    args: tuple[object, ...] = ()


@dataclass(frozen=True)
class Unanswered:
    """Why there is no answer, in one line."""

    reason: str


class Crew(Protocol):
    """Agents, one on each node."""

    @property
    def members(self) -> Sequence[Member]: ...

    @property
    def lost(self) -> Mapping[str, str]:
        """Nodes that stopped answering, and why; they are not asked again."""
        ...

    def ask(self, calls: Sequence[Call], timeout_s: float) -> list[Any]:
        """The answers, each perhaps Unanswered, in the order of `calls`, which run at the same time."""
        ...


class LocalCrew:
    """This process, as the one member."""

    def __init__(self, name: str, cores: int) -> None:
        self.members: Sequence[Member] = (Member(name, None, cores),)
        self.lost: Mapping[str, str] = {}
        self._agent = MachineAgent(name, "127.0.0.1")

    def ask(self, calls: Sequence[Call], timeout_s: float) -> list[Any]:
        """One after the other; what computes here has no deadline. `timeout_s` is for others."""
        return [self._answer(call) for call in calls]

    def _answer(self, call: Call) -> Any:
        try:
            return getattr(self._agent, call.method)(*call.args)
        except RavnestError as error:
            return Unanswered(str(error))
