from collections.abc import Mapping

import pytest

from ravnest.experts.grid import Listens
from ravnest.experts.known_members import KnownMembers
from ravnest.experts.messages import Hello, codec
from ring_allreduce import TransportError
from ring_allreduce.transport import InProcessNetwork, Lane, PeerAddress

A, B = (f"host.{letter * 16}" for letter in "ab")


def test_those_are_known_whom_the_table_names_and_no_others(monkeypatch: pytest.MonkeyPatch) -> None:
    network, lines = InProcessNetwork(), list[str]()
    own, first, second = (network.endpoint(name, codec()) for name in ("own", A, B))
    connect = own.connect

    def as_zeromq_does(peers: Mapping[str, PeerAddress]) -> None:
        if any(" " in one.host for one in peers.values()):
            raise TransportError("no address")
        connect(peers)

    monkeypatch.setattr(own, "connect", as_zeromq_does)
    members = KnownMembers(own, lines.append)
    members.meet({A: Listens(A, "in-process", 1, 1), B: Listens(B, "a b", 1, 1)})
    members.meet({A: Listens(A, "in-process", 1, 1), B: Listens(B, "a b", 1, 1)})
    assert len(lines) == 1
    assert lines[0].startswith(f"{B} cannot be reached")
    for other in (first, second):
        other.connect({"own": own.address})
        other.send("own", Lane.PIPELINE, Hello())
    assert [one.sender for one in own.poll(0.0)] == [A]
    members.meet({B: Listens(B, "in-process", 1, 1)})
    for other in (first, second):
        other.send("own", Lane.PIPELINE, Hello())
    assert [one.sender for one in own.poll(0.0)] == [B]
