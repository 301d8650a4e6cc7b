"""Endpoints that do at a given step what endpoints should not: what a broken or broken-off member looks like to others.

A step is a chunk that leaves, counted within one round. Nothing here waits for a time.
"""

import contextlib
import selectors
import signal
import socket
import threading
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

from experiments.allreduce.fault_plan import Scenario, cut_after_bytes
from ring_allreduce.errors import PeerStalled
from ring_allreduce.ring import Chunk
from ring_allreduce.transport import Lane, LinkShape, Message, PeerAddress, ZmqEndpoint

SLOW = LinkShape(bytes_per_s=2e6, latency_s=0.02)


def strike(which: signal.Signals) -> None:
    """Kill or stop this process, here and now: a signal to the process might reach another of its threads first."""
    signal.pthread_kill(threading.get_ident(), which)


class FaultyEndpoint(ZmqEndpoint):
    """The victim's."""

    def __init__(
        self, name: str, *, plan: Scenario, hang_up: Callable[[], None], struck: Callable[[], None], **options: Any
    ) -> None:
        """`hang_up` cuts the connection to the rendezvous; `struck` is called when a fault of messages came."""
        links = dict.fromkeys(plan.names, SLOW) if plan.what == "slow" else None
        super().__init__(name, links=links, **options)
        self._plan = plan
        self._hang_up = hang_up
        self._struck = struck
        self._steps = 0
        self._came = False
        self._happened = False
        self._held: tuple[str, Lane, Message, Sequence[Tensor]] | None = None
        if plan.what.startswith("cut off"):
            proxy = CuttingProxy(
                self.address.bulk_port, cut_after_bytes(plan), for_good="for good" in plan.what, struck=struck
            )
            self.address = PeerAddress(self.address.host, self.address.pipeline_port, proxy.port)

    def come(self) -> None:
        """The step has come, at the latest when the round is over here."""
        if self._came:
            return
        self._came = True
        match self._plan.what:
            case "killed" | "two killed":
                strike(signal.SIGKILL)
            case "frozen" | "frozen, back after it was left out":
                strike(signal.SIGSTOP)
            case "control connection cut":
                self._hang_up()

    def send(self, peer: str, lane: Lane, message: Message, tensors: Sequence[Tensor] = ()) -> None:
        is_chunk = isinstance(message, Chunk)
        counts = isinstance(message, Chunk) and message.round == self._plan.at_round
        if counts and self._steps >= self._plan.at_chunk:
            self.come()
        # The round may be over here before its last chunks leave: what happens once, happens to the next that does.
        once = is_chunk and self._came and not self._happened
        fault = self._plan.what if self._came else ""
        if fault == "reordered frames" and once:
            self._held = peer, lane, message, [tensor.clone() for tensor in tensors]
        elif fault in ("corrupt header", "truncated body") and once:
            self._send_corrupt(peer, lane, message, tensors)
        else:
            spoilt = fault == "chunks of NaN from then on" or (fault == "one chunk of NaN" and once)
            if spoilt:
                tensors = [torch.full_like(t, torch.nan) if t.is_floating_point() else t for t in tensors]
            super().send(peer, lane, message, tensors)  # may raise PeerStalled: then nothing has happened yet
            if fault == "duplicated frames":
                with contextlib.suppress(PeerStalled):
                    super().send(peer, lane, message, tensors)
            if self._held is not None:
                held, self._held = self._held, None
                super().send(*held)
        self._steps += counts
        if once:
            self._happened = True
            self._struck()

    def poll(self, timeout_s: float) -> Any:
        if self._held is not None:
            held, self._held = self._held, None
            super().send(*held)
        return super().poll(timeout_s)

    def _send_corrupt(self, peer: str, lane: Lane, message: Message, tensors: Sequence[Tensor]) -> None:
        """What arrives is no valid message: it is dropped there, and counted."""
        seal = self._envelope.seal
        truncated = self._plan.what == "truncated body"

        def corrupt(*what: Any) -> Any:
            (head, *bodies), n_bytes = seal(*what)
            if truncated:
                return [head, *(bytes(body)[:-1] for body in bodies)], n_bytes
            flipped = bytearray(head)
            flipped[self._plan.seed % 16 if self._plan.seed % 2 else len(flipped) // 2] ^= 0xFF
            return [bytes(flipped), *bodies], n_bytes

        self._envelope.seal = corrupt  # type: ignore[method-assign]
        try:
            super().send(peer, lane, message, tensors)
        finally:
            self._envelope.seal = seal  # type: ignore[method-assign]


class CuttingProxy:
    """Passes on what comes to one port, and cuts in the middle of it; then takes new connections, or never again."""

    def __init__(self, target_port: int, cut_after_bytes: int, *, for_good: bool, struck: Callable[[], None]) -> None:
        self._target_port = target_port
        self._left = cut_after_bytes
        self._for_good = for_good
        self._struck = struck
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.port: int = self._listener.getsockname()[1]
        threading.Thread(target=self._serve, name="cutting-proxy", daemon=True).start()

    def _serve(self) -> None:
        whole = True
        ways: dict[socket.socket, socket.socket] = {}
        selector = selectors.DefaultSelector()
        selector.register(self._listener, selectors.EVENT_READ)

        def close(*ends: socket.socket) -> None:
            for end in ends:
                if ways.pop(end, None) is not None:
                    selector.unregister(end)
                end.close()

        while True:
            for key, _ in selector.select():
                source = key.fileobj
                assert isinstance(source, socket.socket)
                if source is self._listener:
                    came, _ = self._listener.accept()
                    if not whole and self._for_good:
                        came.close()
                        continue
                    target = socket.create_connection(("127.0.0.1", self._target_port))
                    for one, other in ((came, target), (target, came)):
                        ways[one] = other
                        selector.register(one, selectors.EVENT_READ, one is came)
                    continue
                if source not in ways:
                    continue
                data = b""
                with contextlib.suppress(OSError):
                    data = source.recv(16_384)
                inwards = whole and key.data
                cut = inwards and len(data) >= self._left
                with contextlib.suppress(OSError):
                    ways[source].sendall(data[: self._left] if cut else data)
                self._left -= len(data) if inwards else 0
                if cut:
                    whole = False
                    self._struck()
                    close(*ways)
                elif not data:
                    close(source, ways[source])
