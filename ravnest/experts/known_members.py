"""The members of a grid that an endpoint knows: those that the hash table names, for as long as it names them.

In: where members say that they listen, which may be anything. Out: connections, and a line for each address that cannot
be one.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

from ravnest.errors import InvalidInput
from ravnest.experts.grid import Listens
from ring_allreduce import TransportError
from ring_allreduce.transport import Endpoint, PeerAddress


class KnownMembers:
    """Those of one host. It belongs to the thread that owns the endpoint."""

    def __init__(self, endpoint: Endpoint, report: Callable[[str], None]) -> None:
        self._endpoint, self._report = endpoint, report
        self._known: set[str] = set()
        self._unreachable: set[str] = set()

    def meet(self, members: Mapping[str, Listens]) -> None:
        """Know these members, and no others."""
        for gone in self._known - members.keys():
            self._endpoint.disconnect([gone])
            self._known.discard(gone)
        for name, one in members.items():
            try:
                self._endpoint.connect({name: PeerAddress(one.host, one.pipeline_port, one.bulk_port)})
            except (InvalidInput, TransportError) as error:  # whoever writes to the table may say anything
                if name not in self._unreachable:
                    self._report(f"{name} cannot be reached: {error}")
                self._unreachable.add(name)
            else:
                self._known.add(name)
        self._unreachable &= members.keys()
