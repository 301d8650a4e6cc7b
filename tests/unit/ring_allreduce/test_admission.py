"""Who may join a group, and why others may not."""

import pytest

from ring_allreduce.admission import MAX_NAME_CHARACTERS, why_not
from ring_allreduce.control import Join, MemberAddress


def join(name="b", size=2, host="127.0.0.1", pipeline_port=1, bulk_port=65535):
    return Join(name=name, size=size, address=MemberAddress(host, pipeline_port, bulk_port))


@pytest.mark.parametrize("host", ["attic.local", "192.0.2.7", "2001:db8::7", "fe80::1%eth0"])
def test_a_name_or_an_address_is_welcome(host):
    assert why_not(join(host=host), 2, {"a"}) is None


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
    answer = why_not(join(**changes), 2, {"a"})
    assert reason in answer
    assert len(answer) < 400


def test_a_complete_group_takes_nobody():
    assert why_not(join(), 2, {"a", "c"}) == "the group is complete"
