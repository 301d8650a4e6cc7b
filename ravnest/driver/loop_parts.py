"""How the driver's loop speaks with the stages, and how it hears that their processes have ended.

In: an endpoint, and Ray's news. Out: a record that the loop takes.
"""

from dataclasses import dataclass
from typing import Protocol

from ravnest.driver.ray.stage_actors import StageEnded
from ring_allreduce.transport import Endpoint, Outbox


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
