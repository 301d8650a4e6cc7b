"""Who may join a group, and why others may not."""

import pytest

from ring_allreduce.errors import InvalidInput
from ring_allreduce.group.admission import MAX_NAME_CHARACTERS, is_loopback, require_size, why_not
from ring_allreduce.group.control_messages import MOST_MEMBERS, JoinMessage, MemberAddress


def join(name="b", size=2, host="127.0.0.1", pipeline_port=1, bulk_port=65535, **options):
    return JoinMessage(name=name, size=size, address=MemberAddress(host, pipeline_port, bulk_port), **options)


A = {"a": join("a")}


@pytest.mark.parametrize("host", ["attic.local", "192.0.2.7", "2001:db8::7", "fe80::1%eth0"])
def test_a_name_or_an_address_is_welcome(host):
    assert why_not(join(host=host), 2, A) is None


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"size": 3}, "expects 3 members, the rendezvous 2"),
        ({"name": "a"}, "a member has that name"),
        ({"name": ""}, "a name has 1 to"),
        ({"name": "x" * (MAX_NAME_CHARACTERS + 1)}, "a name has 1 to"),
        ({"host": "bad host!!"}, "peer 'b' has no valid host: 'bad host!!'"),
        ({"host": ""}, "no valid host"),
        ({"host": "h" * 60_000}, "no valid host"),
        ({"host": "eth0;192.0.2.7"}, "no valid host"),
        ({"host": "*"}, "no valid host"),
        ({"host": "192.0.2.7\n"}, "no valid host"),
        ({"pipeline_port": 0}, "no valid ports"),
        ({"bulk_port": 65536}, "no valid ports"),
        ({"bulk_port": -1}, "no valid ports"),
    ],
)
def test_what_others_could_not_use_is_refused_with_the_reason(changes, reason):
    answer = why_not(join(**changes), 2, A)
    assert reason in answer
    assert len(answer) < 400


def test_a_complete_group_takes_nobody():
    assert why_not(join(), 2, {**A, "c": join("c")}) == "the group is complete"


def test_who_is_elsewhere_and_gives_the_address_of_every_machine_is_refused_with_its_own():
    for host in ("127.0.0.1", "localhost", "::1", "127.1.2.3"):
        reason = why_not(join(host=host, comes_from="192.0.2.7"), 2, {})
        assert reason == (
            f"its host {host!r} means each machine itself, and the rendezvous is on another one: give join() host=, "
            "this machine's address as the others reach it, such as 192.0.2.7"
        )


def test_members_that_cannot_reach_each_other_are_told_which_of_them_forgot_its_host():
    far = {"a": join("a", host="192.0.2.9", comes_from="192.0.2.9")}
    assert "and 'a' is on another one, at 192.0.2.9" in why_not(join(), 2, far)
    reason = why_not(join(host="192.0.2.7", comes_from="192.0.2.7"), 2, A)
    assert "cannot reach 'a', which gave '127.0.0.1'" in reason
    assert "let 'a' join with host=" in reason
    assert why_not(join(host="192.0.2.7", comes_from="192.0.2.7"), 2, far) is None
    assert why_not(join(host="192.0.2.1"), 2, A) is None, "both on the rendezvous's machine"


def test_allow_lists_that_differ_are_refused_with_the_names():
    ours = {"a": "1" * 16, "b": "2" * 16}
    assert why_not(join(allowed=ours), 2, {}, ours) is None
    reason = why_not(join(allowed={"b": "3" * 16, "c": "1" * 16}), 2, {}, ours)
    assert reason == (
        "its allow-list lacks 'a', has besides 'c', has another key for 'b', compared with the rendezvous's: all "
        "members need the same list"
    )
    assert "lacks 'a', 'b'" in why_not(join(), 2, {}, ours)


@pytest.mark.parametrize("host", ["attic", "192.0.2.7", "::2", "fe80::1%eth0", "", "127"])
def test_what_is_not_every_machine_itself(host):
    assert not is_loopback(host)


@pytest.mark.parametrize("size", [0, -1, MOST_MEMBERS + 1, 1.0, "2", True, None])
def test_what_is_no_size_is_refused(size):
    with pytest.raises(InvalidInput, match="a group's size is a whole number from 1 to 1000"):
        require_size(size)
