"""Groups whose members are threads: who is refused, named or told what, and what an average among them keeps."""

import contextlib
import multiprocessing
import os
import queue
import signal
import threading

import pytest
import torch

from ring_allreduce import DeadlinePassed, Group, InvalidInput, Patience, PeerLost, RavnestError, Rendezvous
from ring_allreduce.group.member import GroupMember, GroupOptions, address_towards

pytestmark = pytest.mark.timeout(120)

CONTEXT = multiprocessing.get_context("spawn")


def join_later(address, name, into, **options):
    def run():
        try:
            into[name] = Group.join(address, name=name, **{"size": 2, "timeout_s": 10, **options})
        except RavnestError as error:
            into[name] = error

    thread = threading.Thread(target=run)
    thread.start()
    return thread


def test_a_group_that_never_completes_ends_at_its_deadline():
    with Rendezvous(size=2) as rendezvous, pytest.raises(DeadlinePassed, match="joining of all 2 members"):
        Group.join(rendezvous.address, name="a", size=2, timeout_s=0.3)


def test_a_rendezvous_that_is_not_there_ends_at_the_deadline():
    with Rendezvous(size=1) as rendezvous:
        address = rendezvous.address
    with pytest.raises(DeadlinePassed, match="reaching the rendezvous"):
        Group.join(address, name="a", size=1, timeout_s=0.3)


def test_who_does_not_fit_is_refused_with_the_reason():
    into = {}
    with Rendezvous(size=2) as rendezvous:
        with pytest.raises(InvalidInput, match="expects 3 members, the rendezvous 2"):
            Group.join(rendezvous.address, name="x", size=3)
        first = join_later(rendezvous.address, "a", into)
        second = join_later(rendezvous.address, "b", into)
        first.join()
        second.join()
        with pytest.raises(InvalidInput, match="the group is complete"):
            Group.join(rendezvous.address, name="c", size=2)
        for group in into.values():
            group.close()
    with pytest.raises(InvalidInput, match="host:port"):
        Group.join("nowhere", name="a", size=1)


def test_members_that_disagree_end_with_a_clear_error():
    into, errors = {}, {}

    def average(name, size):
        try:
            into[name].average([torch.ones(size)], timeout_s=10)
        except RavnestError as error:
            errors[name] = error
        into[name].close()

    with Rendezvous(size=2) as rendezvous:
        for thread in [join_later(rendezvous.address, name, into) for name in "ab"]:
            thread.join()
        threads = [threading.Thread(target=average, args=(name, size)) for name, size in [("a", 10), ("b", 11)]]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    # Two of two: nobody can say which of them is the odd one.
    assert set(errors) == {"a", "b"}
    assert all("refused what" in str(error) for error in errors.values())
    assert "it averages 11 numbers, torch.float32, as (11,) torch.float32 [" in str(errors["b"])
    assert "], exact, and as many others something else" in str(errors["b"])


def test_a_member_gives_each_call_a_vector_of_its_size_and_none_once_closed():
    with Rendezvous(size=1) as rendezvous:
        member = GroupMember(GroupOptions("a", 1, "127.0.0.1", 10.0, "exact", "fail", None), host_and_port(rendezvous))
        first = member.flat(3, torch.float32)
        assert member.flat(3, torch.float32) is first
        assert member.flat(4, torch.float32).numel() == 4
        assert member.flat(4, torch.float64).dtype == torch.float64
        member.close()
        with pytest.raises(InvalidInput, match="closed"):
            member.flat(4, torch.float64)
        with pytest.raises(InvalidInput, match="closed"):
            member.flat(5, torch.float64)


def host_and_port(rendezvous):
    host, _, port = rendezvous.address.rpartition(":")
    return host, int(port)


def ends_of(groups, calls):
    """What average() returned or raised at each of `groups`, called at the same time as `calls` say; all are closed."""
    ends = {}

    def run(name, call):
        try:
            ends[name] = call(groups[name])
        except RavnestError as error:
            ends[name] = error
        groups[name].close()

    threads = [threading.Thread(target=run, args=item) for item in calls.items()]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return ends


def join_all(rendezvous, names, **options):
    into = {}
    for thread in [join_later(rendezvous.address, name, into, size=len(names), **options) for name in names]:
        thread.join()
    return into


QUICK = Patience(alive_every_s=0.1, silence_floor_s=5.0, stall_floor_s=5.0)


def test_with_fail_the_odd_one_is_named_by_all():
    with Rendezvous(size=3, patience=QUICK) as rendezvous:
        groups = join_all(rendezvous, "abc", on_loss="fail")
        sizes = {"a": 10, "b": 11, "c": 10}
        calls = {name: lambda group: group.average([torch.ones(sizes[group.name])]) for name in "abc"}
        ends = ends_of(groups, calls)
    assert {name: type(end).__name__ for name, end in ends.items()} == {
        "a": "PeerLost",
        "b": "ContributionRefused",
        "c": "PeerLost",
    }
    assert all(end.member == "b" for end in ends.values())
    for end in ends.values():
        assert "it averages 11 numbers, torch.float32, as (11,) torch.float32 [" in str(end)
        assert "the others 10 numbers" in str(end)
        assert "Layout" not in str(end)


def test_with_fail_the_late_one_is_named_by_all():
    with Rendezvous(size=3, patience=QUICK) as rendezvous:
        groups = join_all(rendezvous, "abc", on_loss="fail")
        over = threading.Event()

        def on_time(group):
            try:
                return group.average([torch.ones(10)], timeout_s=0.5)
            finally:
                over.set()

        def late(group):
            assert over.wait(20)
            return group.average([torch.ones(10)])

        ends = ends_of(groups, {"a": on_time, "b": late, "c": on_time})
    assert {name: type(end).__name__ for name, end in ends.items()} == {
        "a": "PeerLost",
        "b": "LeftOut",
        "c": "PeerLost",
    }
    assert all(end.member == "b" for end in ends.values())
    assert all("it had not called average() for round 1 when" in str(end) for end in ends.values())


def test_a_rendezvous_that_says_nothing_any_more_is_named():
    rendezvous = CONTEXT.Process(target=serve, args=((address := CONTEXT.Pipe(duplex=False))[1],), daemon=True)
    rendezvous.start()
    try:
        assert address[0].poll(60)
        where = address[0].recv()
        into = {}
        for thread in [join_later(where, name, into) for name in "ab"]:
            thread.join()
        os.kill(rendezvous.pid, signal.SIGSTOP)
        os.waitpid(rendezvous.pid, os.WUNTRACED)  # until then it may go on, as it does on a busy machine
        calls = {name: lambda group: group.average([torch.ones(10)], timeout_s=0.5) for name in "ab"}
        ends = ends_of(into, calls)
    finally:
        rendezvous.kill()
        rendezvous.join()
    for end in ends.values():
        assert isinstance(end, DeadlinePassed)
        assert "a sign of life of the rendezvous, which has said nothing for" in str(end)


def serve(address):
    with Rendezvous(size=2, patience=QUICK) as rendezvous:
        address.send(rendezvous.address)
        rendezvous.wait(60)


def test_compressed_lists_of_several_forms_in_turn_lose_nothing_over_rounds():
    """What int8 took from one list is added to the next of its form, not forgotten when another comes between."""
    rounds, step = 40, torch.linspace(-1.0, 1.0, 1000) ** 3
    forms = [(1000,), (10, 100)]

    def average(group):
        sums = [torch.zeros(1000, dtype=torch.float64) for _ in forms]
        for _ in range(rounds):
            for form, total in zip(forms, sums, strict=True):
                tensor = step.reshape(form).clone()
                group.average([tensor])
                total += tensor.reshape(-1)
        return [(total / rounds - step).abs().max().item() for total in sums]

    with Rendezvous(size=2) as rendezvous:
        groups = join_all(rendezvous, "ab", wire="int8")
        ends = ends_of(groups, dict.fromkeys("ab", average))
    for errors in ends.values():
        # One rounding is up to 1 / 254; of 40 rounds the last one alone is left.
        assert max(errors) < 3 / 254 / rounds


@pytest.mark.parametrize("host", ["::1", "127.0.0.1"])
def test_an_address_may_be_of_either_kind(host):
    with Rendezvous(size=2, host=host) as rendezvous:
        groups = join_all(rendezvous, "ab", host=host)
        ends = ends_of(groups, dict.fromkeys("ab", lambda group: group.average([torch.ones(10)])))
    assert ends == {"a": 2.0, "b": 2.0}


@pytest.mark.parametrize("host", ["127.0.0.1", "127.0.0.2", "::1", "localhost", "0.0.0.0"])
def test_a_rendezvous_on_this_machine_is_on_no_other(host):
    assert address_towards(host, 29500) == ""


def test_a_lone_member_keeps_its_values_and_wrong_tensors_are_refused():
    with Rendezvous(size=1) as rendezvous, Group.join(rendezvous.address, name="a", size=1) as group:
        values = torch.tensor([0.1, 0.2])
        assert group.average([values], weight=3.0) == 3.0
        assert torch.equal(values, torch.tensor([0.1, 0.2]))
        with pytest.raises(InvalidInput, match="only floating"):
            group.average([torch.tensor([1])])
        for timeout_s in (float("nan"), float("inf"), 0.0, -1.0):
            with pytest.raises(InvalidInput, match="time-out must be finite"):
                group.average([values], timeout_s=timeout_s)
    with pytest.raises(InvalidInput, match="closed"):
        group.average([values])


def test_garbage_at_the_rendezvous_harms_nobody():
    import socket

    with Rendezvous(size=1) as rendezvous:
        host, port = rendezvous.address.split(":")
        with socket.create_connection((host, int(port)), timeout=5) as stranger:
            stranger.sendall(b"GET / HTTP/1.1\r\n\r\n")
            stranger.settimeout(5)
            with contextlib.suppress(ConnectionResetError):
                while stranger.recv(1000):  # a welcome, and the end
                    pass
        with Group.join(rendezvous.address, name="a", size=1, timeout_s=10) as group:
            assert group.members == ("a",)


def test_a_rendezvous_that_ends_is_named():
    rendezvous = Rendezvous(size=1)
    group = Group.join(rendezvous.address, name="a", size=1, timeout_s=5)
    rendezvous.close()
    with pytest.raises(PeerLost, match="rendezvous"):
        group.average([torch.ones(2)])
    group.close()


def test_who_leaves_after_an_average_does_not_spoil_it_for_the_others():
    """The commit and the news that others have left may come together."""
    into, results = {}, queue.SimpleQueue()

    def average_and_leave(name):
        try:
            with into[name] as group:
                results.put(group.average([torch.ones(3)]))
        except RavnestError as error:
            results.put(error)

    for _ in range(5):
        with Rendezvous(size=3) as rendezvous:
            for thread in [join_later(rendezvous.address, name, into, size=3, on_loss="fail") for name in "abc"]:
                thread.join()
            for name in "abc":
                threading.Thread(target=average_and_leave, args=(name,), daemon=True).start()
            assert [results.get(timeout=20) for _ in "abc"] == [3.0, 3.0, 3.0]
