"""How the driver's loop speaks with the stages, and how it hears that their processes have ended.

In: an endpoint, and Ray's news. Out: a record that the loop takes.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Protocol

from ravnest.driver.ray.stage_actors import StageEnded
from ravnest.errors import InvalidInput
from ravnest.stage import messages as m
from ravnest.stage.setup import StageSetup
from ring_allreduce import TransportError
from ring_allreduce.transport import Endpoint, Keys, Outbox, TransportLimits, ZmqEndpoint

_QUEUE_MESSAGES = 4096


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
