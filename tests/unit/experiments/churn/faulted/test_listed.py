from collections import Counter

from experiments.churn.faulted.listed import KINDS, LATER, MOMENTS, sessions


def test_each_kind_meets_each_moment_about_as_often_and_a_longer_list_begins_like_a_shorter_one() -> None:
    found = sessions(300)
    faults = [fault for session in found for fault in session.faults]
    assert [fault.number for fault in faults] == list(range(300))
    assert all(len(session.faults) == 1 + LATER for session in found)
    assert all((session.faults[0].moment == "start") for session in found)
    counts = Counter((fault.kind, fault.moment) for fault in faults)
    assert counts.keys() == {(kind, moment) for kind in KINDS for moment in MOMENTS}
    assert max(counts.values()) - min(counts.values()) <= 1
    assert sessions(20) == found[:4]


def test_a_fault_leaves_the_same_to_chance_each_time() -> None:
    (first, *_), again = sessions(1)[0].faults, sessions(1)[0].faults[0]
    assert first.chance().random() == again.chance().random()
