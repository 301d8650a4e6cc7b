"""What the driver's loop works with: how it speaks with the stages, how it hears that their processes have ended, what
recovers clusters and lets nodes come and go, and its clock.

In: an endpoint, Ray's news, and the time. Out: a record that the loop takes, and time in which it stood still left out.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Protocol

from ravnest.driver.arrivals import NodeArrivals
from ravnest.driver.cluster_starts import ClusterStarts
from ravnest.driver.departures import NodeDepartures
from ravnest.driver.instructions import Instruction
from ravnest.driver.node_requests import Request
from ravnest.driver.ray.stage_actors import StageEnded
from ravnest.driver.slow_nodes import SlowNodes
from ravnest.driver.state_donors import StateDonors
from ravnest.driver.state_handover import StateHandover
from ravnest.errors import InvalidInput
from ravnest.formatting import duration
from ravnest.stage import messages as m
from ravnest.stage.setup import StageSetup
from ring_allreduce import TransportError
from ring_allreduce.rounds import AwakeTime
from ring_allreduce.transport import Endpoint, Keys, Outbox, TransportLimits, ZmqEndpoint

_QUEUE_MESSAGES = 4096
_TOLD_PAUSE_S = 10.0  # less is told to nobody: a busy machine schedules late


class StageEnds(Protocol):
    """Who knows which stages' processes have ended: Ray in a real run."""

    def ended(self, timeout_s: float = 0.0) -> list[StageEnded]:
        """The processes that have ended since the last call, each once. Waits up to `timeout_s` for one."""
        ...


@dataclass(frozen=True)
class StageLinks:
    """How the driver speaks with the stages, and how it hears that their processes have ended."""

    endpoint: Endpoint
    outbox: Outbox
    """Holds the state that is still to be sent to the stages."""
    ends: StageEnds


def goes_on(now_s: float, rest_s: float) -> list[Instruction]:
    """No other plan is considered."""
    return []


@dataclass(frozen=True)
class Recovery:
    """What starts lost clusters anew, and finds the anchor for them: members of their rings, or a checkpoint."""

    starts: ClusterStarts
    donors: StateDonors
    handover: StateHandover
    arrivals: NodeArrivals
    departures: NodeDepartures
    slow: SlowNodes
    requests: Callable[[], list[Request]] = list
    """Returns what users have asked since the last call."""
    news: Callable[[], list[str]] = list
    """Returns what the user is to know of those who start processes, since the last call."""
    remember: Callable[[], None] = lambda: None
    """Writes down what another driver needs to take the run over."""
    anew: Callable[[float, float], list[Instruction]] = goes_on
    """Considers another plan, at each turn while the run trains, and returns instructions that end the session for it:
    a function of the time, and of the rest of the run in seconds."""


class LoopClock:
    """The clock of the loop, which says when this process stood still."""

    def __init__(self, now: Callable[[], float], tell: Callable[[str], None]) -> None:
        """`now` is the clock, in seconds; `tell` is told of a pause, in a sentence."""
        self._now = now
        self._tell = tell
        self._awake = AwakeTime(m.STOOD_STILL_S, m.ALIVE_EVERY_S)
        self._paused_s = 0.0

    def times(self) -> tuple[float, float]:
        """The clock, and the same less the time in which this process stood still, by which all deadlines count."""
        now_s = self._now()
        awake_s = self._awake.at(now_s)
        paused_s, self._paused_s = self._awake.away_s - self._paused_s, self._awake.away_s
        if paused_s > _TOLD_PAUSE_S:
            self._tell(
                f"stood still for {duration(paused_s)} (frozen or suspended): nobody is held silent for that time"
            )
        return now_s, awake_s


def driver_endpoint(any_setup: StageSetup, host: str, keys: Mapping[str, Keys] | None) -> ZmqEndpoint:
    """The driver's endpoint at the address `host`, with the token and the limits of the stages.

    Raises InvalidInput where this machine does not have that address: Ray gives a process whose machine has no node in
    its cluster the address of another one, where the stages would look for it in vain.
    """
    most = any_setup.transport.max_message_bytes
    limits = TransportLimits(max_message_bytes=most, queue_messages=_QUEUE_MESSAGES)
    own = None if keys is None else keys[m.DRIVER]
    try:
        return ZmqEndpoint(
            m.DRIVER, codec=m.codec(), token=any_setup.transport.token, host=host, limits=limits, keys=own
        )
    except TransportError as error:
        raise InvalidInput(
            f"{error}, the address by which Ray knows this process",
            key="--address",
            hint="where it is another machine's, let this one join the cluster: `ray start --address=… --num-cpus 0`",
        ) from None
