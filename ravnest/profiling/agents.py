"""What acts on each node for `profile` and `doctor`: looks at its machine, measures it, and probes its peers.

One per node: an actor of Ray's on the nodes of a cluster, or in this very process without one. Every method raises
errors of ravnest's alone; who calls has a deadline.
"""

import math
import socket
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

from ravnest.errors import RavnestError, RunFailed
from ring_allreduce.transport import Lane, PeerAddress

if TYPE_CHECKING:
    from ravnest.job.config import Job
    from ravnest.profiling.machine_facts import JobFacts, MachineFacts
    from ravnest.profiling.probe_line import Arrivals, PingTimes, ProbeLine
    from ravnest.profiling.speed import BenchmarkWork, Speed

CONNECT_S = 5.0
_AT_ONCE = 16


@dataclass(frozen=True)
class Reachability:
    """Whether a TCP connection to a peer's two ports was taken; else why not, such as `timed out`."""

    pipeline: str | None
    bulk: str | None


class MachineAgent:
    """`shipped`: this process works in a copy of the job's folder, which Ray brought."""

    def __init__(self, name: str, host: str, *, shipped: bool = False) -> None:
        self._name = name
        self._host = host
        self._shipped = shipped
        self._line: object = None

    def facts(self) -> "MachineFacts":
        from ravnest.profiling.machine_facts import machine_facts

        return machine_facts()

    def speed(self, work: "BenchmarkWork", device: str, threads: int, seconds: float) -> "Speed":
        from ravnest.job.materials import search_dirs
        from ravnest.profiling.speed import measure_speed

        at = replace(work, job_file=self._job_file(work.job_file))
        dirs = search_dirs(at.job_file)
        return measure_speed(at, device=device, threads=threads, seconds=seconds, search_dirs=dirs)

    def check_job(self, job: "Job", job_file: str, reads_data: bool) -> "JobFacts":
        from ravnest.profiling.machine_facts import check_job

        return check_job(job, self._job_file(job_file), reads_data=reads_data)

    def listen(self, token: bytes) -> PeerAddress:
        """Bind two ports, as a stage does."""
        from ravnest.profiling.probe_line import ProbeLine

        self._line = ProbeLine(self._name, self._host, token)
        return self._line.address

    def meet(self, peers: Mapping[str, PeerAddress]) -> None:
        self._probe().connect(peers)

    def reach(self, peers: Mapping[str, PeerAddress]) -> dict[str, Reachability]:
        """By plain TCP connections."""
        with ThreadPoolExecutor(_AT_ONCE) as pool:
            tried = {
                peer: [pool.submit(_connects, at.host, port) for port in (at.pipeline_port, at.bulk_port)]
                for peer, at in peers.items()
            }
            return {peer: Reachability(pipeline.result(), bulk.result()) for peer, (pipeline, bulk) in tried.items()}

    def ping(self, peer: str, lane: str, count: int, seconds: float, deadline_s: float) -> "PingTimes":
        return self._probe().ping(peer, Lane[lane], count, seconds, deadline_s)

    def transfer(self, peers: Sequence[str], seconds: float, deadline_s: float) -> "Arrivals":
        return self._probe().transfer(peers, seconds, deadline_s)

    def close(self) -> None:
        if self._line is not None:
            self._probe().close()

    def _probe(self) -> "ProbeLine":
        from ravnest.profiling.probe_line import ProbeLine

        if not isinstance(self._line, ProbeLine):
            raise RunFailed(f"{self._name} does not listen yet")
        return self._line

    def _job_file(self, given: str) -> str:
        return str(Path.cwd() / Path(given).name) if self._shipped else given


def reach_most_s(peers: int) -> float:
    """What `reach` takes where none of so many peers answers."""
    return CONNECT_S * math.ceil(2 * peers / _AT_ONCE)


def _connects(host: str, port: int) -> str | None:
    try:
        socket.create_connection((host, port), timeout=CONNECT_S).close()
    except OSError as error:
        return error.strerror or str(error)
    return None


@dataclass(frozen=True)
class AgentNode:
    """A node that an agent acts on. `cores`: what a stage there may use."""

    name: str
    address: str | None
    cores: int


@dataclass(frozen=True)
class AgentCall:
    """Of a MachineAgent's method."""

    member: str
    method: str
    args: tuple[object, ...] = ()


@dataclass(frozen=True)
class Unanswered:
    """Why there is no answer, in one line."""

    reason: str


class Agents(Protocol):
    """Agents, one on each node."""

    @property
    def members(self) -> Sequence[AgentNode]: ...

    @property
    def lost(self) -> Mapping[str, str]:
        """Nodes that stopped answering, and why; they are not asked again."""
        ...

    def ask(self, calls: Sequence[AgentCall], timeout_s: float) -> list[Any]:
        """The answers, each perhaps Unanswered, in the order of `calls`, which run at the same time."""
        ...


class LocalAgents:
    """This process, as the one member."""

    def __init__(self, name: str, cores: int) -> None:
        self.members: Sequence[AgentNode] = (AgentNode(name, None, cores),)
        self.lost: Mapping[str, str] = {}
        self._agent = MachineAgent(name, "127.0.0.1")

    def ask(self, calls: Sequence[AgentCall], timeout_s: float) -> list[Any]:
        """One after the other; what computes here has no deadline. `timeout_s` is for others."""
        return [self._answer(call) for call in calls]

    def _answer(self, call: AgentCall) -> Any:
        try:
            return getattr(self._agent, call.method)(*call.args)
        except RavnestError as error:
            return Unanswered(str(error))
