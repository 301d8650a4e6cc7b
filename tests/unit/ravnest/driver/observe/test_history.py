import math
from collections.abc import Iterator
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from ravnest.driver.observe.history import OFTEN, PARTS, History


def progress(at_s: float, loss: float | None = 2.0, samples: int | None = None) -> dict[str, Any]:
    clusters = [{"name": "c0", "samples_per_s": 10.0, "loss": loss}, {"name": "c1", "samples_per_s": None, "loss": 4.0}]
    made = round(at_s) * 10 if samples is None else samples
    return {"kind": "progress", "at_s": at_s, "samples": made, "clusters": clusters}


def kept(history: History, records: list[dict[str, Any]]) -> Iterator[dict[str, Any]]:
    for number, record in enumerate(records):
        yield from history.take(record, 100 * number)


def test_what_happens_seldom_is_kept_as_it_is_but_for_what_came_to_each_stage():
    lost = {"kind": "lost", "at_s": 1.0, "cluster": "c0"}
    committed = {"kind": "round", "at_s": 2.0, "round": 3, "received": {"c0.s0": 7}}
    often = [{"kind": kind, "at_s": 3.0} for kind in sorted(OFTEN - {"progress"})]
    assert list(kept(History(), [lost, committed, *often])) == [
        {**lost, "byte": 0},
        {**committed, "received": {}, "byte": 100},
    ]


def test_of_progress_means_are_kept_and_no_second_is_left_out():
    history = History()
    stale = {"kind": "update", "at_s": 0.4, "cluster": "c0", "stage": 1, "staleness": [0, 2, 1]}
    found = list(kept(history, [stale, progress(0.5, 1.0), progress(0.9, None), progress(1.5, 4.0)]))
    assert found == [
        {
            "kind": "past",
            "at_s": 1.5,
            "byte": 300,
            "trained_s": 1.5,
            "samples": 20,
            "samples_per_s": 10.0,
            "losses": {"c0": 2.5, "c1": 4.0},
            "max_staleness": {"c0.s1": 2},
        }
    ]
    assert history.rest(400) == []
    assert list(kept(history, [progress(2.0)])) == []
    assert [each["at_s"] for each in history.rest(400)] == [2.0]
    assert next(iter(kept(history, [stale, progress(9.0)])))["max_staleness"] == {}, "it was told"


@given(st.lists(st.integers(1, 40_000), min_size=1, max_size=4))
def test_the_past_grows_with_the_logarithm_of_the_time_over_all_sessions(sessions):
    history, found = History(), []
    for seconds in sessions:
        for at in range(0, seconds, 20):
            found += history.take(progress(float(at)), 0)
        found += history.rest(0)
        history = History(found[-1])  # it is resumed by another process
    trained = sum(sessions)
    assert len(found) <= PARTS * (2.0 + math.log(max(1.0, trained / PARTS))) + len(sessions)
    told = [float(str(each["trained_s"])) for each in found]
    assert told == sorted(told)
    assert trained - 20 * len(sessions) <= told[-1] <= trained


def test_a_session_that_begins_in_the_same_process_counts_on():
    history = History()
    list(kept(history, [progress(float(at)) for at in range(100)]))
    found = list(kept(history, [progress(0.0, samples=500), progress(3.0, samples=530)]))
    assert [(each["at_s"], each["trained_s"], each["samples"]) for each in found] == [(3.0, 102.0, 530)]
