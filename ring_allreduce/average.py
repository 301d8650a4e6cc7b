"""Averaging among processes without a run: join a group, average lists of tensors, leave.

    with Group.join("127.0.0.1:29500", name="desk", size=3) as group:
        group.average([p.data for p in model.parameters()], weight=samples)

One process serves a `Rendezvous`; the numbers travel between the members themselves. Every wait has a
deadline, and a member that dies makes the others raise PeerLost, which names it. A group belongs to the
thread that joined.
"""

import contextlib
import queue
import socket
import threading
import time
from collections.abc import Sequence
from types import TracebackType

import torch
from torch import Tensor

from ring_allreduce.chunks import chunk_elements_for
from ring_allreduce.control import (
    Called,
    Committed,
    Failed,
    Finished,
    FrameReader,
    Join,
    MemberAddress,
    Opened,
    Refused,
    Roster,
    Welcome,
    keep_alive,
    send_message,
)
from ring_allreduce.errors import DeadlinePassed, InvalidInput, InvalidMessage, PeerLost
from ring_allreduce.flight import RingSpec
from ring_allreduce.messages import RING_KINDS
from ring_allreduce.reducer import RingReducer, RingResult
from ring_allreduce.rendezvous import RING
from ring_allreduce.transport.endpoint import PeerAddress
from ring_allreduce.transport.message import Codec, Message
from ring_allreduce.transport.zmq_endpoint import ZmqEndpoint

RETRY_S = 0.1
CLOSE_TIMEOUT_S = 5.0


class Group:
    """A fixed set of processes that average together. Made by `Group.join`."""

    def __init__(
        self, name: str, size: int, connection: socket.socket, host: str, timeout_s: float, deadline_s: float
    ) -> None:
        """Use `Group.join`: `connection` leads to the rendezvous; everyone is there by `deadline_s`."""
        self.name = name
        self.members: tuple[str, ...] = ()
        self._timeout_s = timeout_s
        self._calls = 0
        self._connection = connection
        connection.settimeout(timeout_s)
        keep_alive(connection)
        self._inbox: queue.SimpleQueue[Message] = queue.SimpleQueue()
        self._endpoint: ZmqEndpoint | None = None
        self._reader = threading.Thread(target=self._read_control, name="group-control", daemon=True)
        self._reader.start()
        try:
            self._meet(size, host, deadline_s)
        except BaseException:
            self.close()
            raise

    @classmethod
    def join(
        cls, rendezvous: str, *, name: str, size: int, host: str = "127.0.0.1", timeout_s: float = 60.0
    ) -> "Group":
        """Wait until all `size` members have joined at `rendezvous` ("host:port").

        `host`: this machine's address as the others reach it. `timeout_s`: the deadline of joining and,
        unless told otherwise, of each average. Raises InvalidInput, DeadlinePassed, PeerLost, TransportError.
        """
        server, _, port = rendezvous.rpartition(":")
        if not server or not port.isdecimal() or not 0 < int(port) < 65536 or not name:
            raise InvalidInput(f'a rendezvous is "host:port" and a name is not empty; got {rendezvous!r}, {name!r}')
        deadline_s = time.monotonic() + timeout_s
        while True:
            try:
                left_s = max(RETRY_S, deadline_s - time.monotonic())
                connection = socket.create_connection((server, int(port)), timeout=left_s)
                break
            except OSError as error:
                # The rendezvous may start after its members.
                if time.monotonic() + RETRY_S > deadline_s:
                    raise DeadlinePassed(f"reaching the rendezvous {rendezvous} ({error})", timeout_s) from error
                time.sleep(RETRY_S)
        return cls(name, size, connection, host, timeout_s, deadline_s)

    def average(self, tensors: Sequence[Tensor], *, weight: float = 1.0, timeout_s: float | None = None) -> float:
        """Replace each tensor's content by its weighted mean over all members; returns the total weight.

        All members call it, as often and with the same shapes. Computed in float32, or float64 when a tensor
        is. Raises PeerLost, DeadlinePassed, ContributionRefused or InvalidInput; the tensors are then
        unchanged, and the group is of no more use.
        """
        if self._endpoint is None:
            raise InvalidInput("this group was closed")
        vector = _flatten(tensors)
        self._calls += 1
        round_, endpoint = self._calls, self._endpoint
        limit_s = self._timeout_s if timeout_s is None else timeout_s
        deadline_s = time.monotonic() + limit_s
        chunk_elements = chunk_elements_for(None, vector.element_size())
        spec = RingSpec(RING, self.members, vector.numel(), chunk_elements, vector.dtype)
        reducer = RingReducer(endpoint, [spec], max_rounds=1, first_round=round_)
        self._tell(Called(calls=round_))
        self._wait_for(Opened(round=round_), reducer, deadline_s, limit_s)
        reducer.contribute(round_, RING, vector, weight)
        result = self._reduce(reducer, deadline_s, limit_s)
        self._tell(Finished(round=round_))
        self._wait_for(Committed(round=round_), reducer, deadline_s, limit_s)
        _unflatten(result.average, tensors)
        return result.total_weight

    def close(self) -> None:
        """Leave the group. Idempotent; also done at the end of a `with` block."""
        with contextlib.suppress(OSError):
            self._connection.shutdown(socket.SHUT_RDWR)
        self._reader.join(CLOSE_TIMEOUT_S)
        self._connection.close()
        if self._endpoint is not None:
            self._endpoint.close()
            self._endpoint = None

    def __enter__(self) -> "Group":
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def _meet(self, size: int, host: str, deadline_s: float) -> None:
        welcome = self._next_control(deadline_s, "an answer of the rendezvous", self._timeout_s)
        if not isinstance(welcome, Welcome):
            raise PeerLost("rendezvous", f"it answered with {welcome}")
        endpoint = ZmqEndpoint(self.name, codec=Codec(RING_KINDS), token=welcome.token, host=host)
        self._endpoint = endpoint
        here = endpoint.address
        address = MemberAddress(here.host, here.pipeline_port, here.bulk_port)
        self._tell(Join(name=self.name, size=size, address=address))
        roster = self._next_control(deadline_s, f"the joining of all {size} members", self._timeout_s)
        if not isinstance(roster, Roster):
            raise PeerLost("rendezvous", f"it answered with {roster}")
        self.members = tuple(roster.members)
        endpoint.epoch = roster.epoch
        peers = {
            name: PeerAddress(where.host, where.pipeline_port, where.bulk_port)
            for name, where in roster.members.items()
        }
        try:
            endpoint.connect(peers)
        except InvalidInput as error:  # no input of the caller's: it came over the network
            raise PeerLost("rendezvous", f"its roster is wrong: {error}") from None

    def _reduce(self, reducer: RingReducer, deadline_s: float, limit_s: float) -> RingResult:
        while True:
            for result in reducer.finished():
                return result
            self._check_control()
            missing = ", ".join(member for _, _, member in reducer.waiting_for())
            self._poll(reducer, deadline_s, f"the arrival of the next chunk from {missing}", limit_s)

    def _wait_for(self, message: Opened | Committed, reducer: RingReducer, deadline_s: float, limit_s: float) -> None:
        """Wait for one control message, going on with the ring meanwhile."""
        what = "call of average()" if isinstance(message, Opened) else "completion"
        waited_for = f"the {what} for round {message.round} by all members"
        while True:
            try:
                arrived = self._inbox.get_nowait()
            except queue.Empty:
                self._poll(reducer, deadline_s, waited_for, limit_s)
                continue
            self._expect(arrived, message)
            return

    def _poll(self, reducer: RingReducer, deadline_s: float, waited_for: str, limit_s: float) -> None:
        assert self._endpoint is not None
        left_s = deadline_s - time.monotonic()
        if left_s <= 0:
            raise DeadlinePassed(waited_for, limit_s)
        # Chunks may come before the message that opens their round: they took another way.
        for delivery in self._endpoint.poll(left_s):
            reducer.on_delivery(delivery)
        reducer.pump()

    def _check_control(self) -> None:
        """While the ring runs, the rendezvous has nothing to say but that it failed."""
        with contextlib.suppress(queue.Empty):
            self._expect(self._inbox.get_nowait(), None)

    def _expect(self, arrived: Message, expected: Message | None) -> None:
        if isinstance(arrived, Failed):
            raise PeerLost(arrived.member, arrived.reason)
        if arrived != expected:
            raise PeerLost("rendezvous", f"it sent {arrived} when {expected} was due")

    def _next_control(self, deadline_s: float, waited_for: str, limit_s: float) -> Message:
        try:
            arrived = self._inbox.get(timeout=max(0.0, deadline_s - time.monotonic()))
        except queue.Empty:
            raise DeadlinePassed(waited_for, limit_s) from None
        if isinstance(arrived, Failed):
            raise PeerLost(arrived.member, arrived.reason)
        if isinstance(arrived, Refused):
            raise InvalidInput(f"the rendezvous refused {self.name!r}: {arrived.reason}")
        return arrived

    def _tell(self, message: Message) -> None:
        try:
            send_message(self._connection, message)
        except OSError as error:
            raise PeerLost("rendezvous", f"its connection broke ({error})") from error

    def _read_control(self) -> None:
        """The reader thread: control messages into the inbox, and a wake for whoever polls."""
        reader = FrameReader()
        reason = "its connection closed"
        try:
            while True:
                # The timeout is for sending; that nobody says anything for a while is no error.
                with contextlib.suppress(TimeoutError):
                    data = self._connection.recv(65536)
                    if not data:
                        break
                    for message in reader.feed(data):
                        self._put(message)
        except (OSError, InvalidMessage) as error:
            reason = f"its connection broke ({error})"
        self._put(Failed(member="rendezvous", reason=reason))

    def _put(self, message: Message) -> None:
        self._inbox.put(message)
        endpoint = self._endpoint
        if endpoint is not None:
            endpoint.wake()


def _flatten(tensors: Sequence[Tensor]) -> Tensor:
    if any(not tensor.dtype.is_floating_point for tensor in tensors):
        raise InvalidInput(f"only floating tensors can be averaged; got {[str(t.dtype) for t in tensors]}")
    wide = any(tensor.dtype == torch.float64 for tensor in tensors)
    dtype = torch.float64 if wide else torch.float32
    parts = [tensor.detach().to("cpu", dtype).reshape(-1) for tensor in tensors]
    return torch.cat(parts) if parts else torch.empty(0, dtype=dtype)


def _unflatten(vector: Tensor, tensors: Sequence[Tensor]) -> None:
    parts = torch.split(vector, [tensor.numel() for tensor in tensors])
    with torch.no_grad():
        for tensor, part in zip(tensors, parts, strict=True):
            tensor.copy_(part.view(tensor.shape))
