"""A group with keys: it averages and survives as ever, and nobody joins without a key or in another's name."""

import os
import queue
import signal
import threading
import time

import psutil
import pytest
import torch

from ring_allreduce import DeadlinePassed, Group, InvalidInput, KeyPair, Keys, PeerLost, RavnestError, Rendezvous
from tests.support.zmtp import listening, mechanism

pytestmark = pytest.mark.timeout(60)

DEADLINE_S = 20.0
PAIRS = {name: KeyPair.make() for name in ("a", "b", "c", "rendezvous")}
ALLOWED = {name: pair.public for name, pair in PAIRS.items()}


def keys(name):
    return Keys(PAIRS[name], ALLOWED)


@pytest.fixture
def rendezvous():
    with Rendezvous(size=2, keys=keys("rendezvous")) as here:
        yield here


def join(rendezvous, name, **options):
    options = {"size": 2, "timeout_s": DEADLINE_S, "keys": keys(name), **options}
    return Group.join(rendezvous.address, name=name, **options)


def together(*calls):
    """What each of the calls returned or raised, made at the same time in threads."""
    results = [queue.SimpleQueue() for _ in calls]

    def run(call, result):
        try:
            result.put(call())
        except RavnestError as error:
            result.put(error)

    for call, result in zip(calls, results, strict=True):
        threading.Thread(target=run, args=(call, result), daemon=True).start()
    return [result.get(timeout=2 * DEADLINE_S) for result in results]


def average_once(rendezvous, name, value, **options):
    tensor = torch.full((100_000,), value)
    with join(rendezvous, name, **options) as group:
        assert group.average([tensor]) == 2.0
    return tensor.unique().tolist()


def assert_still_serves(rendezvous):
    calls = [lambda: average_once(rendezvous, "a", 1.0), lambda: average_once(rendezvous, "b", 2.0)]
    assert together(*calls) == [[1.5], [1.5]]


def test_members_with_keys_average(rendezvous):
    assert_still_serves(rendezvous)
    assert rendezvous.wait(DEADLINE_S)


def test_every_port_of_a_member_and_of_the_rendezvous_asks_for_a_key():
    process = psutil.Process()
    before = listening(process)
    with Rendezvous(size=1, keys=keys("rendezvous")) as here, join(here, "a", size=1):
        ports = listening(process) - before
        assert [mechanism(port) for port in ports] == ["CURVE"] * 3
    with Rendezvous(size=1) as here, join(here, "a", size=1, keys=None):
        ports = listening(process) - before
        assert sorted(str(mechanism(port)) for port in ports) == ["None", "PLAIN", "PLAIN"]


def test_a_key_that_is_not_allowed_is_told_so_at_once(rendezvous):
    stranger, started_s = KeyPair.make(), time.monotonic()
    own = Keys(stranger, {**ALLOWED, "a": stranger.public})
    with pytest.raises(InvalidInput, match=f"refuses the key {stranger.public}"):
        join(rendezvous, "a", keys=own)
    assert time.monotonic() - started_s < 5
    assert_still_serves(rendezvous)


def test_a_member_without_keys_is_told_that_it_needs_some_and_nothing_else(rendezvous):
    with pytest.raises(PeerLost, match="the other side encrypts, and this one was given no keys"):
        join(rendezvous, "a", keys=None)
    assert_still_serves(rendezvous)


def test_a_member_with_keys_tells_a_plain_rendezvous_nothing_and_hears_why():
    with Rendezvous(size=1) as plain, pytest.raises(DeadlinePassed, match="does not encrypt: it was given no keys"):
        join(plain, "a", size=1, timeout_s=0.5)


def test_where_nobody_listens_that_is_said():
    with Rendezvous(size=1) as gone:
        pass
    with pytest.raises(DeadlinePassed, match="nobody listens there"):
        join(gone, "a", size=1, timeout_s=0.5)


def test_members_whose_lists_differ_are_told_so_before_they_wait_for_each_other(rendezvous):
    other = KeyPair.make().public
    own = Keys(PAIRS["a"], {"a": ALLOWED["a"], "b": other, "rendezvous": ALLOWED["rendezvous"]})
    with pytest.raises(InvalidInput, match="its allow-list lacks 'c', has another key for 'b', compared with"):
        join(rendezvous, "a", keys=own)
    assert_still_serves(rendezvous)


def test_a_member_does_not_join_in_the_name_of_another(rendezvous):
    own = Keys(PAIRS["c"], {"a": PAIRS["c"].public, "rendezvous": ALLOWED["rendezvous"]})
    with pytest.raises(InvalidInput, match="refused 'a': its key is that of 'c'"):
        join(rendezvous, "a", keys=own)
    assert_still_serves(rendezvous)


def test_who_is_not_the_rendezvous_is_not_told_anything():
    false = Keys(PAIRS["c"], {**ALLOWED, "c": KeyPair.make().public, "rendezvous": PAIRS["c"].public})
    with Rendezvous(size=1, keys=false) as impostor, pytest.raises(DeadlinePassed, match="has another key than this"):
        join(impostor, "a", size=1, timeout_s=0.5)


def test_mistakes_are_told_before_anything_is_opened():
    with pytest.raises(InvalidInput, match="b: the allow-list has another public key"):
        Group.join("127.0.0.1:1", name="b", size=2, keys=keys("a"))
    with pytest.raises(InvalidInput, match="rendezvous: the allow-list has another public key"):
        Rendezvous(size=2, keys=keys("a"))
    own = Keys(PAIRS["a"], {"a": ALLOWED["a"]})
    with pytest.raises(InvalidInput, match="no member 'rendezvous'"):
        Group.join("127.0.0.1:1", name="a", size=2, keys=own)


def test_a_member_that_is_killed_is_noticed_at_once_and_the_others_go_on(rendezvous):
    child = os.fork()
    if child == 0:
        try:
            torch.set_num_threads(1)
            group = join(rendezvous, "b")
            group.average([torch.ones(10)])
            time.sleep(2 * DEADLINE_S)
        finally:
            os._exit(0)
    with join(rendezvous, "a") as group:
        assert group.average([torch.ones(10)]) == 2.0
        killed_s = time.monotonic()
        os.kill(child, signal.SIGKILL)
        assert group.average([torch.full((10,), 3.0)]) == 1.0
        assert time.monotonic() - killed_s < 5
        assert group.members == ("a",)
        # Who comes back proves that it is the same, and is in again at the next call.
        back = queue.SimpleQueue()
        threading.Thread(target=lambda: back.put(average_once(rendezvous, "b", 3.0)), daemon=True).start()
        values, end = torch.ones(100_000), time.monotonic() + DEADLINE_S
        while group.average([values]) == 1.0:
            assert time.monotonic() < end
        assert values.unique().tolist() == back.get(timeout=DEADLINE_S) == [2.0]
    os.waitpid(child, 0)
