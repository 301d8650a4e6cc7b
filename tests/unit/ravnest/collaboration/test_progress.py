import pytest

from ravnest.collaboration.progress import (
    LEAST_REPORT_S,
    MOST_OVER,
    REPORT_S,
    Report,
    donors,
    expected,
    full_at_s,
    parts_of_batch,
    quotas,
    trials,
)


def report(samples: int = 0, rate: float = 10.0, micro: int = 10, at_s: float = 0.0) -> Report:
    return Report(samples, rate, micro, at_s, every_s=10.0)


def test_a_count_grows_by_whole_micro_batches_between_reports() -> None:
    assert [report(30).whole(at) for at in (0.0, 0.9, 1.0, 2.5)] == [30, 30, 40, 50]


def test_a_silent_peer_is_not_taken_to_go_on_for_ever() -> None:
    assert report().whole(1e6) == 300
    assert not report().trusted(31.0)
    assert expected({"a": report()}, 1e6) == 300


def test_the_moment_at_which_the_batch_is_full_counts_what_is_under_way() -> None:
    reports = {"a": report(), "b": report(rate=5.0)}
    moment = full_at_s(reports, 50, 0.0, 60.0)
    assert moment == pytest.approx(2.0, abs=0.01)  # a: 20 and 10 under way; b: 10 and 10 under way
    assert full_at_s(reports, 10_000, 0.0, 60.0) is None


def test_peers_stop_when_together_they_have_enough_and_hardly_more() -> None:
    reports = {f"p{place}": report(100, at_s=-0.1 * place) for place in range(8)}
    stops = quotas(reports, 805.0, 0.0)
    assert 805 <= sum(stops.values()) <= 805 + 10 + MOST_OVER * 805
    assert stops["p7"] == 110  # its micro-batch ends first
    assert stops["p0"] == 100


def test_a_peer_without_a_rate_is_not_waited_for() -> None:
    assert quotas({"a": report(20, rate=0.0)}, 100.0, 0.0) == {"a": 20}


def test_a_micro_batch_that_is_not_needed_and_takes_long_is_not_waited_for() -> None:
    reports = {f"p{place}": report(100) for place in range(8)} | {"slow": report(rate=0.1)}
    assert quotas(reports, 880.0, 0.5)["slow"] == 0  # the others' end half a second later, its own in 100
    soon = reports | {"slow": report(rate=8.0)}
    assert quotas(soon, 880.0, 0.5)["slow"] == 10  # in 0.75 s
    assert quotas(reports, 890.0, 0.5)["slow"] == 10  # it is needed


def test_a_batch_is_not_full_with_a_micro_batch_that_the_others_make_sooner() -> None:
    fast = {f"p{place}": report() for place in range(8)}
    slow = {f"slow{place}": report(rate=0.1) for place in range(4)}
    assert expected(fast, 0.0) == 80
    assert expected(fast | slow, 0.0) == 80
    assert expected(fast | slow, 28.0) == 80 + 8 * 280  # trusted for 30 s only, in which the slow ones make none
    assert expected({"slow": report(rate=0.1)}, 0.0) == 10  # nobody makes it sooner


def test_progress_is_told_when_it_is_off_or_old_and_never_twice_at_once() -> None:
    told = Report(80, 8.0, 8, 0.0, 2.0)
    assert not told.is_off(80, 1000, 0.5)
    assert told.is_off(80, 1000, REPORT_S)
    assert told.is_off(120, 1000, 0.5)
    assert not told.is_off(120, 10_000, 0.5), "2 % of the batch are more"
    assert not told.is_off(120, 1000, LEAST_REPORT_S / 2)


@pytest.mark.parametrize(
    ("held", "needed", "chosen"),
    [
        ({"a": 20, "b": 20, "c": 20}, 20, {"a"}),
        ({"a": 30, "b": 20, "c": 10}, 40, {"a", "c"}),
        ({"a": 56, "b": 16}, 24, {"b"}),  # it makes the 8 that are left
        ({"a": 8, "b": 16}, 20, {"a", "b"}),  # hardly more
        ({"a": 56}, 24, {"a"}),
        ({"a": 0, "b": 0}, 24, {"a", "b"}),
        ({}, 24, set()),
    ],
)
def test_no_more_give_than_are_needed(held: dict[str, int], needed: int, chosen: set[str]) -> None:
    assert donors(held, needed, 100) == chosen


def test_parts_of_a_batch_go_by_rates_and_fill_it() -> None:
    known = {"fast": report(rate=30.0), "slow": report(rate=10.0), "new": report(rate=0.0)}
    parts = parts_of_batch(known, 200, 5.0)
    assert parts["new"] == 0
    assert parts["fast"] > 2 * parts["slow"]
    assert 200 <= sum(parts.values()) <= 210
    assert parts_of_batch({"new": report(rate=0.0)}, 200, 5.0) == {}


def test_as_many_are_tried_at_a_time_as_make_a_batch_hardly_larger_and_others_in_turn() -> None:
    tried = dict.fromkeys("abcd", 10)
    assert trials({}, 400, 3) == {}
    assert trials(tried, 400, 0) == {"a": 10, "b": 10}
    assert trials(tried, 400, 3) == {"d": 10, "a": 10}
    assert trials(tried, 100, 1) == {"b": 10}, "one is tried in any case"
