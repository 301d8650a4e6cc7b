"""Members of a grid over real, encrypted lines: large tensors both ways, and a member that only opens connections."""

import secrets
import time
from collections.abc import Callable

import pytest
import torch

from ravnest.dht import new_identity
from ravnest.experts.grid import member_name
from ravnest.experts.line_endpoint import WINDOW_BYTES, LineEndpoint
from ravnest.experts.messages import Hello, Welcome
from ring_allreduce import PeerStalled
from ring_allreduce.transport import Delivery, Lane

pytestmark = pytest.mark.timeout(60)


def member(label: str, token: bytes, *, outwards_only: bool = False) -> LineEndpoint:
    identity = new_identity()
    name = member_name(label, identity.public_key)
    return LineEndpoint(name, identity, token, "127.0.0.1", outwards_only=outwards_only)


def until(done: Callable[[], bool], *members: LineEndpoint, heard: list[Delivery]) -> None:
    ends_s = time.monotonic() + 40.0
    while not done():
        assert time.monotonic() < ends_s
        for one in members:
            heard += one.poll(0.01)


def test_large_tensors_travel_both_ways_over_the_line_that_a_host_behind_a_router_has_opened() -> None:
    token, heard = secrets.token_bytes(16), list[Delivery]()
    caller, host = member("caller", token), member("host", token, outwards_only=True)
    stranger = member("stranger", secrets.token_bytes(16))
    try:
        caller.connect({host.name: host.address})
        with pytest.raises(PeerStalled):
            caller.send(host.name, Lane.PIPELINE, Hello())
        host.connect({caller.name: caller.address})
        stranger.connect({caller.name: caller.address})
        stranger.send(caller.name, Lane.PIPELINE, Hello())
        samples = torch.randn(WINDOW_BYTES // 4 + 1000)
        host.send(caller.name, Lane.BULK, Hello(), [samples])
        until(lambda: len(heard) == 1, caller, host, stranger, heard=heard)
        for _ in range(3):
            caller.send(host.name, Lane.PIPELINE, Welcome(), [samples[:-1]])
        until(lambda: len(heard) == 4, caller, host, stranger, heard=heard)
    finally:
        for one in (caller, host, stranger):
            one.close()
    assert [one.sender for one in heard] == [host.name, *[caller.name] * 3]
    assert torch.equal(heard[0].tensors[0], samples)
    assert all(torch.equal(one.tensors[0], samples[:-1]) for one in heard[1:])
