"""Decides in the handshake who may connect, before any message of a connection is accepted.

It uses two mechanisms of ZeroMQ, and answers their questions (ZAP, ZeroMQ RFC 27). Without keys it is PLAIN: the peer
shows the run's token, which crosses the network in clear, here as in the head of each message. That keeps out strangers
that reach a port, not those who read the traffic. With keys it is CURVE: the peer proves that it holds the secret
behind an allowed public key, and everything after that is encrypted.

In: the token or the keys of a run. Out: guarded sockets, and the name of the member behind each connection.
"""

import contextlib
import hmac
import socket
import threading

import zmq

from ring_allreduce.transport.security.keys import Keys

HANDSHAKE_S = 10
"""A connection that has not been admitted by then is closed. A peer's zmq tries again by itself."""

STOP_S = 5.0
"""The time for which stop() waits for its thread, which has nothing to do but to end."""

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
        """To be made before the sockets that it guards, one for each context. With `keys`, the token admits nobody."""
        self.refused = 0
        """How many connections had another token, or a key that is not allowed. Others end before anyone is asked."""
        self.failure: Exception | None = None
        """The error that ended it, if one did: from then on nobody is admitted."""
        self._token = token
        self._keys = keys
        self._questions = context.socket(zmq.REP)
        self._questions.set(zmq.LINGER, 0)
        self._questions.bind(_ZAP)
        self._stop_reader, self._stop_writer = socket.socketpair()
        self._thread = threading.Thread(target=self._serve, name="doorkeeper", daemon=True)
        self._thread.start()

    def stop(self) -> None:
        """Admit nobody any more, and end the thread. A second call has no effect."""
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
        name = admitted(mechanism, b"".join(credentials), self._token, self._keys)
        if name is None:
            self.refused += 1
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
