"""How a member comes into a group: from the rendezvous's address to an open endpoint and a JoinMessage that was sent.

Decides nothing: whether it may come in is the rendezvous's (admission.py), and who is in comes later, as an order.
"""

import contextlib
import socket
import time
from dataclasses import dataclass

from ring_allreduce.errors import DeadlinePassed
from ring_allreduce.group.admission import is_loopback
from ring_allreduce.group.calls import GroupOptions
from ring_allreduce.group.control_line import ControlLine, reach
from ring_allreduce.group.control_messages import JoinMessage, MemberAddress, shortened
from ring_allreduce.group.orders import welcome_of
from ring_allreduce.ring.messages import RING_KINDS
from ring_allreduce.transport.message import Codec, Message
from ring_allreduce.transport.zmq.zmq_endpoint import ZmqEndpoint


@dataclass(frozen=True)
class Entry:
    """What a member that has asked to come in has; it waits for the first epoch."""

    line: ControlLine
    endpoint: ZmqEndpoint
    alive_every_s: float
    """How often it gives a sign of life."""


def enter(options: GroupOptions, rendezvous: tuple[str, int], deadline_s: float) -> Entry:
    """Reach the rendezvous and ask to come in. Raises what `Group.join` raises; nothing is left open then."""
    with contextlib.ExitStack() as opened:
        line = ControlLine(reach(*rendezvous, options.timeout_s, options.keys))
        opened.callback(line.close)
        welcome = welcome_of(next_message(line, options, deadline_s, "an answer of the rendezvous"), options.name)
        endpoint = ZmqEndpoint(
            options.name, codec=Codec(RING_KINDS), token=welcome.token, host=options.host, keys=options.keys
        )
        opened.callback(endpoint.close)
        endpoint.wake_on(line.fileno())
        opened.callback(endpoint.wake_on, None)
        here = endpoint.address
        address = MemberAddress(here.host, here.pipeline_port, here.bulk_port)
        allowed = shortened(options.keys.allowed) if options.keys else {}
        from_ = address_towards(*rendezvous)
        line.tell(JoinMessage(name=options.name, size=options.size, address=address, comes_from=from_, allowed=allowed))
        line.give_signs(welcome.alive_every_s)
        opened.pop_all()
    return Entry(line, endpoint, welcome.alive_every_s)


def next_message(line: ControlLine, options: GroupOptions, deadline_s: float, waited_for: str) -> Message:
    """What the rendezvous says next. Raises DeadlinePassed."""
    message = line.next(max(0.0, deadline_s - time.monotonic()))
    if message is None:
        raise DeadlinePassed(waited_for, options.timeout_s)
    return message


def address_towards(host: str, port: int) -> str:
    """This machine's address on the way to `host`; empty when that is this machine, or unknown. Sends nothing."""
    try:
        family, *_, there = socket.getaddrinfo(host, port, type=socket.SOCK_DGRAM)[0]
        with socket.socket(family, socket.SOCK_DGRAM) as probe:
            probe.connect(there)
            here = str(probe.getsockname()[0])
    except OSError:
        return ""
    return "" if is_loopback(here) or here == there[0] else here
