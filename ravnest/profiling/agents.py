"""The agent that acts on each node for `profile` and `doctor`, and the interface through which agents are asked.

In: calls with plain arguments. Out: facts about the machine, speeds, and measurements of links. There is one agent on
each node: a Ray actor on the nodes of a cluster, or an object in this process where there is no cluster. The methods of
an agent raise only errors of ravnest.errors; whoever calls them has a deadline.
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
    from ravnest.profiling.benchmark_work import BenchmarkWork
    from ravnest.profiling.machine_facts import JobFacts, MachineFacts
    from ravnest.profiling.probe_line import Arrivals, PingTimes, ProbeLine
    from ravnest.profiling.speed import Speed

CONNECT_S = 5.0
_AT_ONCE = 16


@dataclass(frozen=True)
class Reachability:
    """Why a TCP connection to each of a peer's two ports failed, such as `timed out`; None where it was accepted."""

    pipeline: str | None
    bulk: str | None


class MachineAgent:
    """Examines and measures the machine that it is on.

    `shipped` says that this process works in a copy of the job's folder, which Ray brought.
    """

    def __init__(self, name: str, host: str, *, shipped: bool = False) -> None:
        self._name = name
        self._host = host
        self._shipped = shipped
        self._line: object = None

    def facts(self) -> "MachineFacts":
        """What this machine is; see machine_facts."""
        from ravnest.profiling.machine_facts import machine_facts

        return machine_facts()

    def speed(self, work: "BenchmarkWork", device: str, threads: int, seconds: float) -> "Speed":
        """How fast `device` does `work` in about `seconds`; see measure_speed."""
        from ravnest.job.materials import search_dirs
        from ravnest.profiling.gpu_process import process_bytes
        from ravnest.profiling.speed import measure_speed

        at = replace(work, job_file=self._job_file(work.job_file))
        dirs = search_dirs(at.job_file)
        speed = measure_speed(at, device=device, threads=threads, seconds=seconds, search_dirs=dirs)
        return replace(speed, process_bytes=process_bytes(device)) if device.startswith("cuda") else speed

    def check_job(self, job: "Job", job_file: str, reads_data: bool) -> "JobFacts":
        """Whether this machine can run the job's code and read its data; see machine_facts.check_job."""
        from ravnest.profiling.machine_facts import check_job

        return check_job(job, self._job_file(job_file), reads_data=reads_data)

    def listen(self, token: bytes) -> PeerAddress:
        """Binds two ports, as a stage does, and returns their address. `token` is the secret that peers must know."""
        from ravnest.profiling.probe_line import ProbeLine

        self._line = ProbeLine(self._name, self._host, token)
        return self._line.address

    def meet(self, peers: Mapping[str, PeerAddress]) -> None:
        """Makes the addresses of the peers known, which is needed before they can be measured."""
        self._probe().connect(peers)

    def reach(self, peers: Mapping[str, PeerAddress]) -> dict[str, Reachability]:
        """Tries plain TCP connections to both ports of each peer."""
        with ThreadPoolExecutor(_AT_ONCE) as pool:
            tried = {
                peer: [pool.submit(_connects, at.host, port) for port in (at.pipeline_port, at.bulk_port)]
                for peer, at in peers.items()
            }
            return {peer: Reachability(pipeline.result(), bulk.result()) for peer, (pipeline, bulk) in tried.items()}

    def ping(self, peer: str, lane: str, count: int, seconds: float, deadline_s: float) -> "PingTimes":
        """The round-trip times to a peer; see ProbeLine.ping."""
        return self._probe().ping(peer, Lane[lane], count, seconds, deadline_s)

    def transfer(self, peers: Sequence[str], seconds: float, deadline_s: float) -> "Arrivals":
        """Sends to several peers at once; see ProbeLine.transfer."""
        return self._probe().transfer(peers, seconds, deadline_s)

    def close(self) -> None:
        """Closes the ports, if there are any."""
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
    """How many seconds `reach` takes at most for so many peers, which it needs where none of them answers."""
    return CONNECT_S * math.ceil(2 * peers / _AT_ONCE)


def _connects(host: str, port: int) -> str | None:
    try:
        socket.create_connection((host, port), timeout=CONNECT_S).close()
    except OSError as error:
        return error.strerror or str(error)
    return None


@dataclass(frozen=True)
class AgentNode:
    """A node that has an agent. `cores` is the number of processor cores that a stage there may use."""

    name: str
    address: str | None
    cores: int


@dataclass(frozen=True)
class AgentCall:
    """A call of a method of the MachineAgent on the node `member`."""

    member: str
    method: str
    args: tuple[object, ...] = ()


@dataclass(frozen=True)
class Unanswered:
    """Stands for an answer that did not come; `reason` says why, in one line."""

    reason: str


class Agents(Protocol):
    """A set of agents, one on each node."""

    @property
    def members(self) -> Sequence[AgentNode]: ...

    @property
    def lost(self) -> Mapping[str, str]:
        """The nodes that stopped answering, with the reason. They are not asked again."""
        ...

    def ask(self, calls: Sequence[AgentCall], timeout_s: float) -> list[Any]:
        """Makes all calls at the same time and returns their answers in the same order.

        A call that fails or takes longer than `timeout_s` gives an Unanswered.
        """
        ...


class LocalAgents:
    """This process as the only agent."""

    def __init__(self, name: str, cores: int) -> None:
        self.members: Sequence[AgentNode] = (AgentNode(name, None, cores),)
        self.lost: Mapping[str, str] = {}
        self._agent = MachineAgent(name, "127.0.0.1")

    def ask(self, calls: Sequence[AgentCall], timeout_s: float) -> list[Any]:
        """Makes the calls one after the other. `timeout_s` is ignored, since nothing here can be interrupted."""
        return [self._answer(call) for call in calls]

    def _answer(self, call: AgentCall) -> Any:
        try:
            return getattr(self._agent, call.method)(*call.args)
        except RavnestError as error:
            return Unanswered(str(error))
