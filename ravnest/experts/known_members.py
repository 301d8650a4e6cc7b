"""The members of a grid that an endpoint knows: those that the hash table names, for as long as it names them.

In: where members say that they listen, which may be anything. Out: connections, and a line for each address that cannot
be one.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

from ravnest.dht import KeyIdentity
from ravnest.errors import InvalidInput
from ravnest.experts.grid import Listens
from ravnest.experts.line_endpoint import LineAddress, LineEndpoint
from ravnest.experts.messages import codec
from ring_allreduce import TransportError
from ring_allreduce.transport import TOKEN_BYTES, Endpoint, PeerAddress, ZmqEndpoint


def address_of(one: Listens) -> PeerAddress:
    """Where a member says that it listens."""
    encrypts = one.key or not one.pipeline_port
    return (
        LineAddress(one.host, one.pipeline_port, one.bulk_port, one.key)
        if encrypts
        else PeerAddress(one.host, one.pipeline_port, one.bulk_port)
    )


def listens_at(endpoint: Endpoint, proof: bytes) -> Listens:
    """What a member says of where it listens, with the proof that it is one."""
    address = endpoint.address
    key = address.key if isinstance(address, LineAddress) else ""
    return Listens(endpoint.name, address.host, address.pipeline_port, address.bulk_port, key, proof)


def local_token(name: str) -> bytes:
    """The token of a grid whose members are all on one machine, and have no token file."""
    return f"local {name}".encode()[:TOKEN_BYTES].ljust(TOKEN_BYTES, b".")


def members_endpoint(
    name: str, identity: KeyIdentity, token: bytes, grid: str, host: str, *, outwards_only: bool = False
) -> Endpoint:
    """The endpoint of a member of a grid: encrypted, but for members on one machine, which share its memory. Raises
    TransportError, and InvalidInput for a member that only opens connections and has no token file."""
    if token != local_token(grid):
        return LineEndpoint(name, identity, token, host, outwards_only=outwards_only)
    if outwards_only:
        message = "expected a file that all members share: without it all of them are on this machine"
        raise InvalidInput(message, key="token_file")
    return ZmqEndpoint(name, codec=codec(), token=token, host=host)


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
                self._endpoint.connect({name: address_of(one)})
            except (InvalidInput, TransportError) as error:  # whoever writes to the table may say anything
                if name not in self._unreachable:
                    self._report(f"{name} cannot be reached: {error}")
                self._unreachable.add(name)
            else:
                self._known.add(name)
        self._unreachable &= members.keys()
