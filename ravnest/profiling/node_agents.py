"""An agent on each node of a Ray cluster: the crew of `profile` and `doctor`.

Decides what the nodes are called, and when one counts as lost: once it has not answered a call in time, or Ray says
that its agent is gone.
"""

from collections.abc import Mapping, Sequence
from typing import Any

from ravnest.driver.ray.session import RayNode, RaySession, one_line
from ravnest.errors import RavnestError
from ravnest.profiling.agents import AgentCall, AgentNode, MachineAgent, Unanswered


class RayAgents:
    """Use as a context manager: leaving ends the agents."""

    def __init__(
        self, session: RaySession, names: Mapping[str, str], planned: Mapping[str, str | None] | None = None
    ) -> None:
        """`names`: what nodes of given addresses are called; others have the name of their resource, else of their
        host. `planned`: in place of all nodes that work, these alone, by their names in the plan, and their
        addresses where it has them; each has an agent of its own, where several are on one Ray node, too."""
        self._ray = session.ray
        everyone = session.nodes()
        alive = [node for node in everyone if node.alive]
        if planned is None:
            named = named_nodes([node for node in alive if node.works], names)
        else:
            named = planned_nodes(alive, planned)
        self.host = session.host
        """The address of this process."""
        self.dead: Sequence[RayNode] = [node for node in everyone if not node.alive]
        self.members: Sequence[AgentNode] = tuple(
            AgentNode(name, node.address, node.cores) for name, node in named.items()
        )
        self.lost: dict[str, str] = {}
        remote = self._ray.remote(MachineAgent)
        self._agents = {
            name: remote.options(num_cpus=0, max_restarts=0, **session.on_node(node)).remote(
                name, node.address, shipped=session.ships_code
            )
            for name, node in named.items()
        }

    def __enter__(self) -> "RayAgents":
        return self

    def __exit__(self, *exc: object) -> None:
        for agent in self._agents.values():
            self._ray.kill(agent)

    def ask(self, calls: Sequence[AgentCall], timeout_s: float) -> list[Any]:
        """See Crew. One deadline for all of `calls`."""
        asked = [
            None if call.member in self.lost else getattr(self._agents[call.member], call.method).remote(*call.args)
            for call in calls
        ]
        waiting = [one for one in asked if one is not None]
        done: set[Any] = set()
        if waiting:
            done = set(self._ray.wait(waiting, num_returns=len(waiting), timeout=timeout_s)[0])
        return [self._answer(call, one, one in done, timeout_s) for call, one in zip(calls, asked, strict=True)]

    def _answer(self, call: AgentCall, asked: Any, done: bool, timeout_s: float) -> Any:
        if asked is None:
            return Unanswered(self.lost[call.member])
        if not done:
            self.lost[call.member] = f"did not answer within {timeout_s:.0f} s"
            return Unanswered(self.lost[call.member])
        try:
            return self._ray.get(asked)
        except self._ray.exceptions.RayTaskError as error:
            cause = error.cause if isinstance(error.cause, RavnestError) else error
            return Unanswered(str(cause) if isinstance(cause, RavnestError) else _last_line(error))
        except self._ray.exceptions.RayError as error:
            # Of a node cut off Ray says the same as of a process that was killed: that the actor died.
            self.lost[call.member] = f"is no longer reachable, or its process ended ({one_line(error)})"
            return Unanswered(self.lost[call.member])


def planned_nodes(alive: Sequence[RayNode], planned: Mapping[str, str | None]) -> dict[str, RayNode]:
    """By planned name, of which the address may be known, the node that a run would take; not those that have none."""
    found = {name: next((node for node in alive if node.is_of(name, at)), None) for name, at in planned.items()}
    return {name: node for name, node in found.items() if node is not None}


def named_nodes(nodes: Sequence[RayNode], names: Mapping[str, str]) -> dict[str, RayNode]:
    """Each node under a name of its own, in the order of their addresses."""
    found: dict[str, RayNode] = {}
    hosts = [node.hostname for node in nodes]
    for node in sorted(nodes, key=lambda each: each.address):
        host = node.hostname if hosts.count(node.hostname) == 1 else f"{node.hostname}-{node.address}"
        name = names.get(node.address) or node.name or host
        found[name if name not in found else f"{name}-{node.node_id[:6]}"] = node
    return found


def _last_line(error: BaseException) -> str:
    """Of a traceback of the other side: what was raised."""
    lines = [line for line in str(error).splitlines() if line.strip()]
    return lines[-1].strip() if lines else type(error).__name__
