"""Who may connect: a run's token is asked for in the handshake, before any message of a connection is accepted.

ZeroMQ's PLAIN mechanism, and the one who answers its questions (ZAP, ZeroMQ RFC 27). The token crosses the network
in clear, here as in the head of each message: this keeps out strangers that reach a port, not those who read
the traffic. Only `guard` and `present_token` name the mechanism, so that CurveZMQ can take its place.
"""

import contextlib
import hmac
import socket
import threading

import zmq

HANDSHAKE_S = 10
"""A connection that has not shown the token by then is closed; zmq tries again by itself when it was a peer's."""

STOP_S = 5.0
"""How long stop() waits for a thread that has nothing to do but to end."""

_ZAP = "inproc://zeromq.zap.01"
_ZAP_VERSION = b"1.0"
_USER = b"member"

Context = zmq.Context[zmq.Socket[bytes]]


def guard(listening: "zmq.Socket[bytes]") -> None:
    """Let `listening` accept only connections that its context's doorkeeper admits. Before bind()."""
    listening.set(zmq.PLAIN_SERVER, 1)
    listening.set(zmq.ZAP_DOMAIN, b"run")
    listening.set(zmq.HANDSHAKE_IVL, HANDSHAKE_S * 1000)


def present_token(connecting: "zmq.Socket[bytes]", token: bytes) -> None:
    """Let `connecting` show `token` to whom it connects. Before connect()."""
    connecting.set(zmq.PLAIN_USERNAME, _USER)
    connecting.set(zmq.PLAIN_PASSWORD, _password(token))


class Doorkeeper:
    """Answers, in a thread of its own, whether a new connection may stay.

    The thread that owns the endpoint's sockets may be away from poll() for long; connections are admitted meanwhile,
    and those that strangers try again and again do not pile up. pyzmq's ThreadAuthenticator would do the same, but
    logs the token, and its stop() has no deadline.
    """

    def __init__(self, context: Context, token: bytes) -> None:
        """Make it before the sockets that it guards, one for each context."""
        self.refused = 0
        """Connections that showed another token. Those that showed none end before anyone is asked."""
        self.failure: Exception | None = None
        """What ended it, other than stop(): from then on nobody is admitted."""
        self._password = _password(token)
        self._questions = context.socket(zmq.REP)
        self._questions.set(zmq.LINGER, 0)
        self._questions.bind(_ZAP)
        self._stop_reader, self._stop_writer = socket.socketpair()
        self._thread = threading.Thread(target=self._serve, name="doorkeeper", daemon=True)
        self._thread.start()

    def stop(self) -> None:
        """Admit nobody more, and leave no thread behind. Idempotent."""
        self._stop_writer.close()
        self._thread.join(STOP_S)

    def _serve(self) -> None:
        poller = zmq.Poller()
        poller.register(self._questions, zmq.POLLIN)
        poller.register(self._stop_reader, zmq.POLLIN)
        with self._stop_reader, contextlib.closing(self._questions):
            try:
                while self._stop_reader.fileno() not in dict(poller.poll()):  # stop() ends it
                    self._questions.send_multipart(self._answer(self._questions.recv_multipart()))
            except Exception as error:  # noqa: BLE001 - told by the endpoint, whose thread can raise it
                self.failure = error

    def _answer(self, question: list[bytes]) -> list[bytes]:
        _version, request, _domain, _address, _identity, mechanism, *credentials = question
        shown = b"".join(credentials)
        if mechanism == b"PLAIN" and hmac.compare_digest(shown, _USER + self._password):
            return [_ZAP_VERSION, request, b"200", b"OK", _USER, b""]
        self.refused += 1
        return [_ZAP_VERSION, request, b"400", b"not of this run", b"", b""]


def _password(token: bytes) -> bytes:
    return token.hex().encode()
