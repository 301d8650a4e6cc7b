"""Starts the agents that `profile` and `doctor` ask: one on each node of a Ray cluster, or this process alone.

In: a Ray address or session, and what the nodes are called. Out: agents that answer calls. This module decides the
names of the nodes, and when a node counts as lost: when it has not answered a call in time, or when Ray says that its
agent is gone.
"""

import os
import socket
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from ravnest.driver.ray.code_shipping import job_code
from ravnest.driver.ray.session import RayNode, RaySession, check_address, one_line
from ravnest.errors import RavnestError
from ravnest.job.config import Job
from ravnest.profiling.agents import AgentCall, AgentNode, Agents, LocalAgents, MachineAgent, Unanswered


class RayAgents:
    """One agent on each node of a Ray cluster. Used as a context manager, which ends the agents when it is left."""

    def __init__(
        self, session: RaySession, names: Mapping[str, str], planned: Mapping[str, str | None] | None = None
    ) -> None:
        """Starts the agents.

        Arguments:
            session: the connection to Ray.
            names: the names of nodes, by address. Another node has the name of its Ray resource, else of its host.
            planned: the only nodes that get an agent, by their names in the plan, with their addresses where the plan
                has them. Each gets an agent of its own, even where several of them are on one Ray node. None: all
                nodes that take work.
        """
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
        """See Agents.ask. All of `calls` share one deadline."""
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


@contextmanager
def agents_at(
    address: str | None, job: Job | None, job_file: Path | None, names: Mapping[str, str], warn: Callable[[str], None]
) -> Iterator[Agents]:
    """The agents on all nodes of a Ray cluster, or this process alone; the context ends them.

    Arguments:
        address: HOST:PORT of the Ray cluster; None for this machine alone.
        job, job_file: the job whose code is sent to the nodes, and its file; None where no code is needed.
        names: the names of nodes, by address. This machine, if it is alone, takes the only name in it.
        warn: is told which files of the job's folder are not sent.

    Raises:
        InvalidInput: where nothing listens at `address`. RunFailed where Ray cannot be joined.
    """
    if address is None:
        name = next(iter(names.values())) if len(names) == 1 else socket.gethostname()
        yield LocalAgents(name, len(os.sched_getaffinity(0)))
        return
    check_address(address)
    code = None if job is None or job_file is None else job_code(job, job_file)
    if code is not None and code.notice is not None:
        warn(code.notice)
    session = RaySession(address, code)
    try:
        with RayAgents(session, names) as agents:
            yield agents
    finally:
        session.close()


def planned_nodes(alive: Sequence[RayNode], planned: Mapping[str, str | None]) -> dict[str, RayNode]:
    """The Ray node that a run would take for each planned node, by planned name.

    `planned` has the names and, where they are known, the addresses. Planned nodes that Ray does not have are left out.
    """
    found = {name: next((node for node in alive if node.is_of(name, at)), None) for name, at in planned.items()}
    return {name: node for name, node in found.items() if node is not None}


def named_nodes(nodes: Sequence[RayNode], names: Mapping[str, str]) -> dict[str, RayNode]:
    """Each node under a name of its own, in the order of the addresses. `names` holds names by address."""
    found: dict[str, RayNode] = {}
    hosts = [node.hostname for node in nodes]
    for node in sorted(nodes, key=lambda each: each.address):
        host = node.hostname if hosts.count(node.hostname) == 1 else f"{node.hostname}-{node.address}"
        name = names.get(node.address) or node.name or host
        found[name if name not in found else f"{name}-{node.node_id[:6]}"] = node
    return found


def _last_line(error: BaseException) -> str:
    """The last line of a remote traceback, which says what was raised."""
    lines = [line for line in str(error).splitlines() if line.strip()]
    return lines[-1].strip() if lines else type(error).__name__
