"""Decides in the handshake who may connect, before any message of a connection is accepted.

It uses two mechanisms of ZeroMQ, and answers their questions (ZAP, ZeroMQ RFC 27). Without keys it is PLAIN: the peer
shows the run's token, which crosses the network in clear, here as in the head of each message. That keeps out strangers
that reach a port, not those who read the traffic. With keys it is CURVE: the peer proves that it holds the secret
behind an allowed public key, and everything after that is encrypted.

How many connections may wait to be admitted is decided in waiting_room.py.

In: the token or the keys of a run. Out: guarded sockets, and the name of the member behind each connection.
"""

import contextlib
import hmac
import math
import socket
import threading
import time

import zmq
from zmq.utils.monitor import recv_monitor_message

from ring_allreduce.transport.security.keys import Keys
from ring_allreduce.transport.security.waiting_room import Lobby, monitor_of
from ring_allreduce.transport.stats import Strangers

HANDSHAKE_S = 10
"""A connection that has not been admitted by then is closed. A peer's zmq tries again by itself."""

STOP_S = 5.0
"""The time for which stop() waits for its thread, which has nothing to do but to end."""

_NEWS_AT_ONCE = 64
"""Connections whose coming or going is taken before the next question is answered."""

_ZAP = "inproc://zeromq.zap.01"
_ZAP_VERSION = b"1.0"
_USER = b"member"

Context = zmq.Context[zmq.Socket[bytes]]


def guard(listening: "zmq.Socket[bytes]", keys: Keys | None = None) -> None:
    """Let `listening` accept only connections that its context's doorkeeper admits. To be called before bind()."""
    if keys is None:
        listening.set(zmq.PLAIN_SERVER, 1)
    else:
        listening.set(zmq.CURVE_SERVER, 1)
        listening.set(zmq.CURVE_SECRETKEY, bytes.fromhex(keys.own.secret))
    listening.set(zmq.ZAP_DOMAIN, b"run")
    listening.set(zmq.HANDSHAKE_IVL, HANDSHAKE_S * 1000)


def present_token(connecting: "zmq.Socket[bytes]", token: bytes) -> None:
    """Let `connecting` show `token` to the peer that it connects to. To be called before connect()."""
    connecting.set(zmq.PLAIN_USERNAME, _USER)
    connecting.set(zmq.PLAIN_PASSWORD, _password(token))


def present_keys(connecting: "zmq.Socket[bytes]", keys: Keys, peer: str) -> None:
    """Let `connecting` talk only to `peer`, and prove its own identity. To be called before connect()."""
    connecting.set(zmq.CURVE_SERVERKEY, bytes.fromhex(keys.public_of(peer)))
    connecting.set(zmq.CURVE_PUBLICKEY, bytes.fromhex(keys.own.public))
    connecting.set(zmq.CURVE_SECRETKEY, bytes.fromhex(keys.own.secret))


def proven_name(frame: zmq.Frame) -> str:
    """Return the member whose key opened the connection that a frame came through, which is guarded with keys."""
    return str(frame.get("User-Id"))


class Doorkeeper:
    """Answers, in a thread of its own, whether a new connection may stay.

    The thread that owns the endpoint's sockets may not call poll() for long; connections are admitted meanwhile, and
    those that strangers try again and again do not pile up. pyzmq's ThreadAuthenticator would do the same, but it logs
    the token, and its stop() has no deadline.
    """

    def __init__(self, context: Context, token: bytes, keys: Keys | None = None) -> None:
        """Make one for each context, before the sockets that it guards. With `keys`, the token admits nobody."""
        self.refused = 0
        """How many connections had another token, or a key that is not allowed. Others end before anyone is asked."""
        self.strangers = Strangers()
        """Those that were refused, and those that were turned away since too many waited, by address."""
        self.failure: Exception | None = None
        """The error that ended it, if one did: from then on nobody is admitted."""
        self._token = token
        self._keys = keys
        self._questions = context.socket(zmq.REP)
        self._questions.set(zmq.LINGER, 0)
        self._questions.bind(_ZAP)
        self._lobby = Lobby(self.strangers, with_keys=keys is not None)
        self._monitors: list[zmq.Socket[bytes]] = []
        self._stop_reader, self._stop_writer = socket.socketpair()
        self._thread = threading.Thread(target=self._serve, name="doorkeeper", daemon=True)

    def watch(self, listening: "zmq.Socket[bytes]") -> None:
        """Bound the unadmitted connections of a guarded socket. To be called before start() and bind().

        Its monitor is to be disabled before `listening` is closed, and that is to be closed before stop().
        """
        self._monitors.append(monitor_of(listening))

    def start(self) -> None:
        """Answer from now on."""
        self._thread.start()

    def stop(self) -> None:
        """Admit nobody any more, and end the thread. A second call has no effect."""
        self._stop_writer.close()
        if self._thread.ident is None:  # it was never started
            self._stop_reader.close()
        else:
            self._thread.join(STOP_S)

    def _serve(self) -> None:
        poller = zmq.Poller()
        for readable in (self._questions, *self._monitors):
            poller.register(readable, zmq.POLLIN)
        poller.register(self._stop_reader, zmq.POLLIN)
        with contextlib.ExitStack() as opened:
            opened.enter_context(self._stop_reader)
            for one in (self._questions, *self._monitors):
                opened.enter_context(contextlib.closing(one))
            try:
                self._answer_all(poller)
            except Exception as error:  # noqa: BLE001 - told by the endpoint, whose thread can raise it
                self.failure = error
                poller.unregister(self._questions)  # nobody is admitted any more
                while self._stop_reader.fileno() not in (ready := dict(poller.poll())):
                    for monitor in ready:  # ZeroMQ stands still while it cannot tell its news
                        monitor.recv_multipart()

    def _answer_all(self, poller: zmq.Poller) -> None:
        while True:
            wait_s = self._lobby.until_trim_s(time.monotonic())
            ready = dict(poller.poll(None if wait_s is None else math.ceil(1000 * wait_s)))
            if self._stop_reader.fileno() in ready:  # stop() ends it
                return
            if self._questions in ready:
                self._questions.send_multipart(self._answer(self._questions.recv_multipart()))
            for monitor in self._monitors:
                if monitor in ready:
                    self._hear(monitor)
            self._lobby.give_back(time.monotonic())

    def _hear(self, monitor: "zmq.Socket[bytes]") -> None:
        for _ in range(_NEWS_AT_ONCE):
            if not monitor.poll(0):
                return
            self._lobby.take(recv_monitor_message(monitor), time.monotonic())

    def _answer(self, question: list[bytes]) -> list[bytes]:
        _version, request, _domain, address, _identity, mechanism, *credentials = question
        name = admitted(mechanism, b"".join(credentials), self._token, self._keys)
        if name is None:
            self.refused += 1
            self.strangers.came(address.decode("ascii", "replace"))
            return [_ZAP_VERSION, request, b"400", b"not of this run", b"", b""]
        return [_ZAP_VERSION, request, b"200", b"OK", name, b""]


def admitted(mechanism: bytes, shown: bytes, token: bytes, keys: Keys | None) -> bytes | None:
    """Return the name that a connection's messages will carry; None refuses the connection.

    mechanism: what the connection uses, b"PLAIN" or b"CURVE". shown: its credentials, one after the other: user and
    password, or the public key that it has proven to own. token, keys: those of the run; with keys, the token admits
    nobody.
    """
    if keys is not None:
        name = keys.names.get(shown) if mechanism == b"CURVE" else None
        return None if name is None else name.encode()
    known = mechanism == b"PLAIN" and hmac.compare_digest(shown, _USER + _password(token))
    return _USER if known else None


def _password(token: bytes) -> bytes:
    return token.hex().encode()
