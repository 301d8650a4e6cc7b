import queue
from collections.abc import Callable, Iterator, Sequence
from itertools import count
from typing import Any, ClassVar

import pytest
import torch
from torch import Tensor

from ravnest.dht import new_identity
from ravnest.errors import InvalidInput
from ravnest.experts import line_endpoint
from ravnest.experts.grid import member_name
from ravnest.experts.line_endpoint import (
    MOST_OF_ONE,
    MOST_QUEUED_BYTES,
    MOST_UNKNOWN,
    WINDOW_BYTES,
    Introduced,
    LineAddress,
    LineEndpoint,
    Taken,
    members_key,
)
from ravnest.experts.messages import Hello, Welcome
from ring_allreduce import PeerStalled, UnknownPeer
from ring_allreduce.transport import Delivery, Keys, Lane, LineClosed, LineOpened, LineSaid, Message, PeerAddress

TOKEN, OTHER_TOKEN = bytes(16), bytes(15) + b"x"


class FakeLines:
    """Lines without sockets: those of one process reach each other by their ports."""

    ports = count(1000)
    listening: ClassVar[dict[int, "FakeLines"]] = {}
    made: ClassVar[list["FakeLines"]] = []

    def __init__(self, codec: object, token: bytes, *, listen: tuple[str, int, Keys] | None, **limits: int) -> None:
        self.keys = None if listen is None else listen[2]
        self.port = None if listen is None else next(self.ports)
        self.token, self.said, self.hung_up = token, list[Message](), dict[int, str]()
        self.events: queue.SimpleQueue[Any] = queue.SimpleQueue()
        self.others: dict[int, tuple[FakeLines, int]] = {}
        self.trusted: set[int] = set()
        self.numbers = count()
        self.made.append(self)
        if self.port is not None:
            self.listening[self.port] = self

    def dial(self, host: str, port: int, keys: Keys, peer: str, timeout_s: float) -> int:
        other = self.listening.get(port)
        if other is None or other.keys is None or keys.allowed[peer] != other.keys.own.public:
            raise TimeoutError(peer)
        if keys.own.public not in other.keys.allowed.values():
            raise InvalidInput("the key is refused")
        mine, theirs = next(self.numbers), next(other.numbers)
        self.others[mine], other.others[theirs] = (other, theirs), (self, mine)
        other.events.put(LineOpened(theirs, "member"))
        return mine

    def send(self, line: int, message: Message, tensors: Sequence[Tensor] = ()) -> None:
        self.said.append(message)
        if line in self.others:
            other, theirs = self.others[line]
            other.events.put(LineSaid(theirs, message, tuple(tensors)))

    def take(self, timeout_s: float) -> list[Any]:
        found = []
        try:
            found.append(self.events.get(timeout=timeout_s) if timeout_s else self.events.get_nowait())
            while True:
                found.append(self.events.get_nowait())
        except queue.Empty:
            return [one for one in found if one is not None]

    def trust(self, line: int) -> None:
        self.trusted.add(line)

    def hang_up(self, line: int, reason: str) -> None:
        self.hung_up[line] = reason
        if line in self.others:
            other, theirs = self.others.pop(line)
            other.others.pop(theirs, None)
            other.events.put(LineClosed(theirs, reason))
            self.events.put(LineClosed(line, reason))

    def wake(self) -> None:
        self.events.put(None)

    def close(self) -> None:
        self.listening.pop(self.port or 0, None)


class Member:
    def __init__(self, label: str, token: bytes = TOKEN, *, outwards_only: bool = False) -> None:
        identity = new_identity()
        self.name = member_name(label, identity.public_key)
        self.end = LineEndpoint(self.name, identity, token, "127.0.0.1", outwards_only=outwards_only)
        self.lines = FakeLines.made[-1]
        self.heard: list[Delivery] = []

    def poll(self, times: int) -> None:
        for _ in range(times):
            self.heard += self.end.poll(0.002)

    def knows(self, *others: "Member") -> None:
        self.end.connect({one.name: one.end.address for one in others})

    def says(self, other: "Member", *tensors: Tensor) -> None:
        self.end.send(other.name, Lane.PIPELINE, Hello(), tensors)


@pytest.fixture(autouse=True)
def fake(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setattr(line_endpoint, "Lines", FakeLines)
    yield
    FakeLines.listening.clear()


def until(done: Callable[[], object], *members: Member) -> None:
    """Let members poll until something holds; at most some thousand times."""
    for _ in range(2000):
        for one in members:
            one.heard += one.end.poll(0.002)
        if done():
            return
    raise AssertionError([one.heard for one in members])


def test_who_has_something_to_say_opens_a_line_which_both_use() -> None:
    caller, host = Member("caller"), Member("host")
    caller.knows(host), host.knows(caller)
    caller.says(host, torch.ones(3))
    until(lambda: host.heard, caller, host)
    (delivery,) = host.heard
    assert (delivery.sender, delivery.message) == (caller.name, Hello())
    assert torch.equal(delivery.tensors[0], torch.ones(3))
    host.end.send(caller.name, Lane.PIPELINE, Welcome())
    until(lambda: caller.heard, caller, host)
    assert (caller.heard[0].sender, caller.heard[0].message) == (host.name, Welcome())
    assert len(host.lines.others) == 1  # the answer took the line that was there
    for one in (caller, host):
        one.end.close()


def test_a_host_that_only_opens_lines_reaches_a_caller_that_listens() -> None:
    caller, host = Member("caller"), Member("host", outwards_only=True)
    assert host.end.address.pipeline_port == 0
    caller.knows(host)
    with pytest.raises(PeerStalled):  # nobody can open a line to it
        caller.says(host)
    host.knows(caller)
    until(lambda: caller.lines.trusted, caller, host)
    caller.says(host)
    until(lambda: host.heard, caller, host)
    assert host.heard[0].sender == caller.name


def test_without_the_token_nobody_is_heard() -> None:
    caller, host = Member("caller", OTHER_TOKEN), Member("host")
    caller.knows(host), host.knows(caller)

    def takes_nothing_more() -> bool:
        try:
            caller.says(host)
        except PeerStalled:  # for AGAIN_S
            return True
        return False

    until(takes_nothing_more, caller, host)
    assert not host.lines.others
    assert not host.heard
    assert members_key(TOKEN) == members_key(TOKEN) != members_key(OTHER_TOKEN)


@pytest.mark.parametrize(
    "what", ["another's name", "another listener's key", "another listener's name", "something else first"]
)
def test_who_is_not_who_it_says_is_hung_up_on(what: str) -> None:
    host, liar, victim = Member("host"), new_identity(), Member("victim")
    host.knows(victim)
    assert isinstance(host.end.address, LineAddress)
    key = victim.end.address.key if what == "another listener's key" else host.end.address.key  # type: ignore[attr-defined]
    name = victim.name if what == "another's name" else member_name("liar", liar.public_key)
    listener = victim.name if what == "another listener's name" else host.name
    signature = liar.sign(f"ravnest experts: a line to {listener} {key}".encode())
    lines = FakeLines(None, TOKEN, listen=None)
    line = lines.dial("", host.end.address.pipeline_port, Keys(members_key(TOKEN), {"h": host.end.address.key}), "h", 1)
    first = Introduced(name=name, public_key=liar.public_key, signature=signature)
    lines.send(line, Hello() if what == "something else first" else first)
    lines.send(line, Hello())
    until(lambda: host.lines.hung_up, host)
    assert not host.heard
    assert not host.lines.trusted


def test_one_member_has_few_lines_and_who_is_forgotten_has_none() -> None:
    host, caller = Member("host"), Member("caller")
    identity = new_identity()
    name, key = member_name("many", identity.public_key), host.end.address.key  # type: ignore[attr-defined]
    lines = FakeLines(None, TOKEN, listen=None)
    keys = Keys(members_key(TOKEN), {"h": key})
    signature = identity.sign(f"ravnest experts: a line to {host.name} {key}".encode())
    for _ in range(MOST_OF_ONE + 1):
        line = lines.dial("", host.end.address.pipeline_port, keys, "h", 1)
        lines.send(line, Introduced(name=name, public_key=identity.public_key, signature=signature))
    host.poll(20)
    assert not host.lines.trusted, "nobody of that name is known"
    host.end.connect({name: LineAddress("127.0.0.1", 0, 0, "")})
    until(lambda: host.lines.hung_up, host)
    assert len(host.lines.trusted) == MOST_OF_ONE
    caller.knows(host), host.knows(caller)
    caller.says(host)
    until(lambda: host.heard, caller, host)
    host.end.disconnect([caller.name])
    assert "it is no member any more" in host.lines.hung_up.values()
    with pytest.raises(UnknownPeer):
        host.says(caller)
    host.knows(caller)
    host.says(caller)  # over a line of its own: not over the one that has just ended
    until(lambda: caller.heard, caller, host)


def test_who_announces_anothers_key_does_not_have_it_take_what_was_meant_for_itself() -> None:
    caller, host, liar = Member("caller"), Member("host"), Member("liar")
    caller.end.connect({liar.name: host.end.address})  # as the liar's record says, which it signs
    host.knows(caller)
    caller.says(liar)
    until(lambda: host.lines.hung_up, caller, host)
    assert not host.heard
    assert set(host.lines.hung_up.values()) == {"it is not who it says"}


def test_who_makes_up_names_has_few_lines_and_none_that_takes_much() -> None:
    host, caller, liar = Member("host"), Member("caller"), new_identity()
    key = host.end.address.key  # type: ignore[attr-defined]
    lines, keys = FakeLines(None, TOKEN, listen=None), Keys(members_key(TOKEN), {"h": key})
    signature = liar.sign(f"ravnest experts: a line to {host.name} {key}".encode())
    for number in range(2 * MOST_UNKNOWN):
        line = lines.dial("", host.end.address.pipeline_port, keys, "h", 1)
        name = member_name(f"liar{number}", liar.public_key)
        lines.send(line, Introduced(name=name, public_key=liar.public_key, signature=signature))
    host.poll(20)
    assert not host.lines.trusted
    assert len(host.lines.others) == MOST_UNKNOWN
    caller.knows(host), host.knows(caller)
    caller.says(host)
    until(lambda: host.heard, caller, host)


def test_silence_on_many_lines_keeps_no_member_out() -> None:
    host, caller = Member("host"), Member("caller")
    lines, keys = FakeLines(None, TOKEN, listen=None), Keys(members_key(TOKEN), {"h": host.end.address.key})  # type: ignore[attr-defined]
    for _ in range(MOST_UNKNOWN):
        lines.dial("", host.end.address.pipeline_port, keys, "h", 1)
    caller.knows(host), host.knows(caller)
    caller.says(host)
    until(lambda: host.heard, caller, host)
    assert len(host.lines.others) == MOST_UNKNOWN, "the oldest gave way"


def test_who_is_known_only_later_is_heard_then() -> None:
    host, caller = Member("host"), Member("caller")
    caller.knows(host)
    caller.says(host)
    for _ in range(20):
        caller.poll(1), host.poll(1)
    assert not host.heard
    host.knows(caller)
    until(lambda: host.heard, caller, host)


def test_what_waits_for_all_members_is_bounded_and_who_has_most_loses_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(line_endpoint, "MOST_QUEUED_IN_ALL_BYTES", 100_000)
    host, liar, caller = Member("host"), Member("liar"), Member("caller")
    host.knows(liar, caller), liar.knows(host), caller.knows(host)
    monkeypatch.setattr(line_endpoint, "WINDOW_BYTES", 1)  # whatever is sent, the rest waits
    liar.says(host), caller.says(host)
    until(lambda: len(host.heard) == 2, liar, caller, host)
    for one in (liar, liar, caller, caller):  # each begins with one that is on its way
        host.says(one, torch.zeros(5000))
    host.says(liar, torch.zeros(5000))
    with pytest.raises(PeerStalled):
        host.says(liar, torch.zeros(10_000))
    host.says(caller, torch.zeros(10_000))
    until(lambda: len(caller.heard) == 3, liar, caller, host)


def test_only_so_much_is_on_its_way_and_waits() -> None:
    caller, host = Member("caller"), Member("host")
    caller.knows(host), host.knows(caller)
    half = torch.zeros(WINDOW_BYTES // 8)
    for _ in range(4):
        caller.says(host, half)
    until(lambda: caller.lines.said, caller)
    assert [type(one) for one in caller.lines.said] == [Introduced]  # who does not know it takes nothing large
    until(lambda: host.lines.trusted, host)
    until(lambda: len(caller.lines.said) > 1, caller)
    assert sum(isinstance(one, Hello) for one in caller.lines.said) == 1
    until(lambda: len(host.heard) == 4, caller, host)
    assert sum(isinstance(one, Taken) for one in host.lines.said) >= 4
    large = torch.zeros(1).expand(MOST_QUEUED_BYTES // 4)
    with pytest.raises(PeerStalled):
        caller.says(host, large)


def test_a_listener_that_never_answers_is_hung_up_on_and_called_again(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(line_endpoint, "INTRODUCE_S", 0.0)
    monkeypatch.setattr(line_endpoint, "AGAIN_S", 0.0)
    caller, host = Member("caller"), Member("host")
    caller.knows(host)
    caller.says(host)
    until(lambda: caller.lines.hung_up, caller)
    assert set(caller.lines.hung_up.values()) == {"it did not answer who this is"}
    monkeypatch.undo()
    monkeypatch.setattr(line_endpoint, "Lines", FakeLines)
    host.knows(caller)
    caller.poll(5)  # it hears of the end of the line that nobody has answered on
    caller.says(host)
    until(lambda: host.heard, caller, host)


def test_addresses_that_cannot_be_are_refused() -> None:
    host = Member("host")
    with pytest.raises(InvalidInput, match="does not encrypt"):
        host.end.connect({"a": PeerAddress("127.0.0.1", 1, 1)})
    with pytest.raises(InvalidInput, match="does not encrypt"):
        host.end.connect({"a": LineAddress("127.0.0.1", 1, 1, "")})
    with pytest.raises(InvalidInput):
        host.end.connect({"a": LineAddress("a b", 1, 1, "0" * 64)})
