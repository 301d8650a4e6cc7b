"""The rendezvous against those who say nothing, or the wrong thing; and a member that meets a rendezvous not ours."""

import contextlib
import queue
import resource
import socket
import struct
import threading
import time

import pytest
import torch

from ring_allreduce import Group, PeerLost, RavnestError, Rendezvous
from ring_allreduce.group import rendezvous as module
from ring_allreduce.group.control_messages import (
    FIRST_FRAME_BYTES,
    AliveMessage,
    CommittedMessage,
    FinishedMessage,
    FrameReader,
    HeldMessage,
    JoinMessage,
    LeavingMessage,
    MemberAddress,
    PutOutMessage,
    ReformedMessage,
    RefusedMessage,
    ResumedMessage,
    WelcomeMessage,
    framed,
)
from ring_allreduce.group.liveness import Report
from ring_allreduce.ring import RING_KINDS
from ring_allreduce.transport import Codec, PeerAddress, ZmqEndpoint

pytestmark = pytest.mark.timeout(60)

DEADLINE_S = 20.0
LEAVING = LeavingMessage(reason="enough")
FINISHED = FinishedMessage(epoch=1, round=1)


def connect(rendezvous):
    host, _, port = rendezvous.address.rpartition(":")
    return socket.create_connection((host, int(port)), timeout=DEADLINE_S)


def send_message(connection, message):
    connection.sendall(framed(message))


def hear(connection):
    """The next messages on `connection`; none when it was closed."""
    with contextlib.suppress(ConnectionError):
        data = connection.recv(65536)
        return FrameReader().feed(data)
    return []


def join(name="x", host="127.0.0.1"):
    return JoinMessage(name=name, size=2, address=MemberAddress(host, 1, 1))


def meet(rendezvous, *names):
    """The groups of honest members that join at the same time."""
    groups = queue.SimpleQueue()

    def run(name):
        try:
            groups.put(Group.join(rendezvous.address, name=name, size=len(names), timeout_s=DEADLINE_S))
        except RavnestError as error:
            groups.put(error)

    for name in names:
        threading.Thread(target=run, args=(name,), daemon=True).start()
    met = [groups.get(timeout=2 * DEADLINE_S) for _ in names]
    for group in met:
        if isinstance(group, Group):
            group.close()
    return met


@pytest.fixture
def rendezvous():
    with Rendezvous(size=2) as here:
        yield here


def assert_still_serves(rendezvous):
    assert [group.members for group in meet(rendezvous, "a", "b")] == [("a", "b")] * 2


def test_it_listens_on_loopback_unless_told_otherwise(rendezvous):
    assert rendezvous.address.startswith("127.0.0.1:")
    with Rendezvous(size=2, host="0.0.0.0") as open_to_all:
        assert open_to_all.address.startswith("0.0.0.0:")


def test_any_number_of_silent_connections_keeps_nobody_out(rendezvous):
    with contextlib.ExitStack() as stack:
        silent = [stack.enter_context(connect(rendezvous)) for _ in range(module.SPARE_CONNECTIONS + 30)]
        assert_still_serves(rendezvous)
        assert isinstance(hear(silent[0])[0], WelcomeMessage)
        assert hear(silent[0]) == [], "the oldest made room"


def test_a_connection_that_does_not_join_is_closed(monkeypatch):
    monkeypatch.setattr(module, "JOIN_DEADLINE_S", 0.5)
    monkeypatch.setattr(module, "TICK_S", 0.1)
    with Rendezvous(size=2) as rendezvous, connect(rendezvous) as silent, connect(rendezvous) as dripping:
        for one in (silent, dripping):
            assert isinstance(hear(one)[0], WelcomeMessage)
        dripping.sendall(b"\0")
        assert hear(silent) == hear(dripping) == []
        monkeypatch.undo()  # honest members may be slow
        assert_still_serves(rendezvous)


@pytest.mark.parametrize(
    "said",
    [
        [FINISHED],
        [CommittedMessage(epoch=1, round=1)],
        [join(), join()],
        [join(), join(name="y")],
        [join(), FINISHED],
        [join(), HeldMessage(epoch=0, rounds=[], form="")],
        [join(), PutOutMessage(epoch=1, reason="", refused=False)],
        [join(), LEAVING],
        [join(), LEAVING, AliveMessage(report=Report())],
        [join(), LEAVING, LEAVING],
    ],
    ids=lambda said: " ".join(type(message).__name__ for message in said),
)
def test_what_is_out_of_turn_ends_the_connection_without_an_answer(rendezvous, said):
    with connect(rendezvous) as peer:
        assert isinstance(hear(peer)[0], WelcomeMessage)
        peer.sendall(b"".join(map(framed, said)))
        assert hear(peer) == []
        assert_still_serves(rendezvous)


def test_who_has_left_before_all_had_come_does_not_speak_for_the_next_one_of_its_name(rendezvous):
    with connect(rendezvous) as left, connect(rendezvous) as a:
        for member in (left, a):
            assert isinstance(hear(member)[0], WelcomeMessage)
        send_message(left, join(name="a"))
        send_message(left, LEAVING)
        assert hear(left) == []
        send_message(a, join(name="a"))
        left.close()
        with connect(rendezvous) as b:
            assert isinstance(hear(b)[0], WelcomeMessage)
            send_message(b, join(name="b"))
            assert list(hear(a)[0].members) == list(hear(b)[0].members) == ["a", "b"]


def test_who_never_joined_has_no_say_in_a_complete_group(rendezvous):
    with connect(rendezvous) as stranger:
        assert isinstance(hear(stranger)[0], WelcomeMessage)
        with connect(rendezvous) as a, connect(rendezvous) as b:
            for name, member in (("a", a), ("b", b)):
                assert isinstance(hear(member)[0], WelcomeMessage)
                send_message(member, join(name=name))
            assert isinstance(hear(a)[0], ReformedMessage)
            send_message(stranger, FINISHED)
            assert hear(stranger) == []
            # What comes next is the end of the other member.
            b.close()
            (reformed,) = hear(a)
            assert (list(reformed.members), list(reformed.lost)) == (["a"], ["b"])


def test_after_what_ended_a_connection_nothing_more_of_it_is_taken(rendezvous, monkeypatch):
    taken, take = [], Rendezvous._take
    monkeypatch.setattr(Rendezvous, "_take", lambda self, *said: (taken.append(said[1]), take(self, *said)))
    with connect(rendezvous) as peer:
        assert isinstance(hear(peer)[0], WelcomeMessage)
        frames, pipe = socket.socketpair()
        for message in (FINISHED, join(name="ghost"), join(name="ghost")):
            send_message(pipe, message)
        peer.sendall(frames.recv(65536))
        assert hear(peer) == []
        frames.close()
        pipe.close()
        assert taken == [FINISHED]
        assert_still_serves(rendezvous)


@pytest.mark.parametrize("host", ["bad host!!", ""])
def test_an_address_that_none_could_use_is_refused_and_the_honest_meet(rendezvous, host):
    with connect(rendezvous) as peer:
        assert isinstance(hear(peer)[0], WelcomeMessage)
        send_message(peer, join(host=host))
        (refused,) = hear(peer)
        assert isinstance(refused, RefusedMessage)
        assert "no valid host" in refused.reason
        assert_still_serves(rendezvous)


def test_a_complete_group_tells_its_token_to_nobody(rendezvous):
    with contextlib.ExitStack() as stack:
        groups = queue.SimpleQueue()
        for name in "ab":
            arguments = {"name": name, "size": 2, "timeout_s": DEADLINE_S}
            run = threading.Thread(target=lambda kw=arguments: groups.put(Group.join(rendezvous.address, **kw)))
            run.start()
        for _ in "ab":
            stack.enter_context(groups.get(timeout=DEADLINE_S))
        late = stack.enter_context(connect(rendezvous))
        assert hear(late) == [RefusedMessage(reason="the group is complete")]


def test_without_file_descriptors_it_rests_and_goes_on(rendezvous, monkeypatch):
    monkeypatch.setattr(module, "TICK_S", 0.1)
    limits = resource.getrlimit(resource.RLIMIT_NOFILE)
    with contextlib.ExitStack() as stack:
        waiting = [stack.enter_context(socket.socket()) for _ in range(3)]
        highest = max(one.fileno() for one in waiting)
        resource.setrlimit(resource.RLIMIT_NOFILE, (highest + 1, limits[1]))
        try:
            host, _, port = rendezvous.address.rpartition(":")
            for one in waiting:
                one.settimeout(0.5)
                one.connect((host, int(port)))
            with pytest.raises(TimeoutError):
                waiting[-1].recv(1)
        finally:
            resource.setrlimit(resource.RLIMIT_NOFILE, limits)
        assert_still_serves(rendezvous)


def test_a_member_takes_the_epoch_that_it_is_told():
    token = bytes(range(16))
    other = ZmqEndpoint("b", codec=Codec(RING_KINDS), token=token)
    with socket.create_server(("127.0.0.1", 0)) as listener:
        address = f"127.0.0.1:{listener.getsockname()[1]}"
        outcome = queue.SimpleQueue()

        def member():
            try:
                with Group.join(address, name="a", size=2, timeout_s=DEADLINE_S) as group:
                    group.average([torch.ones(100)])
            except RavnestError as error:
                outcome.put(error)

        threading.Thread(target=member, daemon=True).start()
        listener.settimeout(DEADLINE_S)
        connection, _ = listener.accept()
        with connection:
            connection.settimeout(DEADLINE_S)
            send_message(connection, WelcomeMessage(token=token, alive_every_s=1.0))
            (joined,) = hear(connection)
            where = joined.address
            other.connect({"a": PeerAddress(where.host, where.pipeline_port, where.bulk_port)})
            here = MemberAddress(other.address.host, other.address.pipeline_port, other.address.bulk_port)
            send_message(connection, ReformedMessage(epoch=7, members={"a": where, "b": here}, committed=0, lost={}))
            assert HeldMessage(epoch=7, rounds=[], form="") in [
                message for _ in range(2) for message in hear(connection)
            ]
            send_message(connection, ResumedMessage(epoch=7, kept=[], hand_on=[], first_round=1))
            end, deliveries = time.monotonic() + DEADLINE_S, []
            while not deliveries and time.monotonic() < end:
                deliveries = other.poll(0.1)
        assert {delivery.epoch for delivery in deliveries} == {7}
        assert isinstance(outcome.get(timeout=DEADLINE_S), PeerLost)
    other.close()


def test_an_epoch_that_begins_while_another_is_told_is_told_after_it(monkeypatch):
    """Who cannot be told is lost, which is news for those who have not been told yet, either."""
    send_frame = module.Rendezvous._send_frame

    def send_or_lose_b(self, connection, frame):
        if connection.name == "b":
            self._drop(connection, "it takes no messages")
        else:
            send_frame(self, connection, frame)

    monkeypatch.setattr(module.Rendezvous, "_send_frame", send_or_lose_b)
    with Rendezvous(size=3) as rendezvous, contextlib.ExitStack() as stack:
        members = {name: stack.enter_context(connect(rendezvous)) for name in "abc"}
        for name, member in members.items():
            assert isinstance(hear(member)[0], WelcomeMessage)
            send_message(member, JoinMessage(name=name, size=3, address=MemberAddress("127.0.0.1", 1, 1)))
        for name in "ac":
            reader, told = FrameReader(), []
            while len(told) < 2:
                told += reader.feed(members[name].recv(65536))
            assert [(message.epoch, list(message.members)) for message in told] == [
                (1, ["a", "b", "c"]),
                (2, ["a", "c"]),
            ]


def test_garbage_of_a_member_ends_its_connection_and_the_others_go_on(rendezvous):
    with connect(rendezvous) as a, connect(rendezvous) as b:
        for name, member in (("a", a), ("b", b)):
            assert isinstance(hear(member)[0], WelcomeMessage)
            send_message(member, join(name=name))
        assert isinstance(hear(a)[0], ReformedMessage)
        b.sendall(b"\xff" * 100)
        (reformed,) = hear(a)
        assert list(reformed.members) == ["a"]
        assert reformed.lost["b"].startswith("it sent what is no message")


def test_a_name_that_has_just_left_may_come_back_at_once(rendezvous):
    groups = queue.SimpleQueue()

    def come(name):
        """JoinMessage, and average once."""
        group = Group.join(rendezvous.address, name=name, size=2, timeout_s=DEADLINE_S)
        group.average([torch.full((3,), 0.5)], weight=2.0)
        groups.put(group)

    for name in "ab":
        threading.Thread(target=come, args=(name,), daemon=True).start()
    one, other = groups.get(timeout=DEADLINE_S), groups.get(timeout=DEADLINE_S)
    with one:
        for _ in range(5):
            other.close()
            threading.Thread(target=come, args=(other.name,), daemon=True).start()
            values = torch.full((3,), 2.0)
            while one.average([values]) < 3.0:
                assert values.tolist() == [2.0, 2.0, 2.0], "alone"
            assert values.tolist() == [1.0, 1.0, 1.0]
            other = groups.get(timeout=DEADLINE_S)
        other.close()


def test_who_has_not_joined_cannot_make_it_hold_a_large_frame(rendezvous):
    with connect(rendezvous) as stranger:
        assert isinstance(hear(stranger)[0], WelcomeMessage)
        with contextlib.suppress(ConnectionError):
            stranger.sendall(struct.pack(">I", FIRST_FRAME_BYTES + 1))
        assert hear(stranger) == []
    assert_still_serves(rendezvous)
    assert rendezvous.strangers.counts == {"127.0.0.1": 1}
