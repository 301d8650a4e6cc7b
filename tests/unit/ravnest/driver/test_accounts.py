"""SampleAccounts: `a` and `b` make updates of 12 samples."""

import math
from dataclasses import replace

from ravnest.driver.accounts import RunShape, SampleAccounts
from ravnest.driver.standing import Standing


def accounts(standing=None, **changes):
    shape = {
        "clusters": {"a": 1, "b": 2},
        "evaluators": ("a", "b"),
        "samples_per_update": 12,
        "stop_samples": None,
        "stop_s": None,
        "evaluate_every": 100,
        "held_out_batches": 0,
    }
    return SampleAccounts(RunShape(**{**shape, **changes}), standing)


def after_a_loss():
    """b has made 5 updates, of which 2 are in a committed round and 4 in round 2, and is lost."""
    made = accounts()
    made.updated("a", 3)
    made.updated("b", 5)
    made.snapshot(1, "b", 2)
    made.snapshot(2, "b", 4)
    made.committed(1)
    assert made.dropped("b") == 3 * 12
    return made


def test_samples_count_from_the_run_s_first_start():
    made = accounts(start_samples=240, start_updates={"a": 10, "b": 10})
    made.updated("a", 12)
    made.updated("a", 11)
    assert (made.samples, made.session_samples, made.made_by("a"), made.made_by("b")) == (264, 24, 24, 0)


def test_what_a_lost_cluster_had_not_averaged_does_not_count():
    made = after_a_loss()
    assert made.updates == {"a": 3, "b": 2}
    assert made.samples == 5 * 12


def test_what_it_gave_to_a_round_that_is_kept_counts_after_all():
    made = after_a_loss()
    made.restarted(kept=[2])
    made.committed(2)
    assert made.updates["b"] == made.averaged["b"] == 4


def test_what_it_gave_to_a_round_that_starts_again_never_counts_though_it_is_back_by_then():
    made = after_a_loss()
    made.restarted(kept=[])
    made.committed(2)
    assert made.updates["b"] == made.averaged["b"] == 2


def test_the_one_that_is_back_makes_the_lost_updates_again_and_they_count_once():
    made = after_a_loss()
    made.restarted(kept=[])
    for updates in (3, 4, 5):
        made.updated("b", updates)
    made.snapshot(3, "b", 5)
    made.committed(2)
    made.committed(3)
    assert made.samples == 8 * 12
    assert made.dropped("b") == 0


def test_the_rest_of_the_run_is_known_from_its_end_and_its_speed():
    assert accounts().rest_s(10.0) == math.inf
    assert accounts(stop_s=60.0).rest_s(10.0) == 50.0
    made = accounts(stop_s=600.0, stop_samples=480, start_samples=240)
    assert made.rest_s(10.0) == 590.0
    made.updated("a", 10)
    assert made.rest_s(10.0) == 10.0
    made.updated("a", 99)
    assert made.rest_s(10.0) == 0.0


def test_a_cluster_that_is_expected_begins_where_its_share_would_be_and_has_made_nothing():
    made = accounts()
    made.updated("a", 30)
    made.updated("b", 10)
    made.expected("c", (0.5, 0.75))
    made.expected("a", (0.0, 1.0))
    assert made.updates == {"a": 30, "b": 10, "c": 10}
    assert (made.samples, made.made_by("c")) == (480, 0)
    made.updated("c", 12)
    assert (made.samples, made.made_by("c")) == (504, 24)
    assert made.unmade == {"c": 10}, "what its schedule had before it, and nobody made"
    assert made.dropped("c") == 24
    assert made.samples == 480


def test_what_others_made_before_a_cluster_came_does_not_count_as_its_own_under_another_driver():
    made = accounts()
    made.updated("a", 20)
    made.expected("c", (0.0, 0.5))
    assert made.begun == {"a": 0, "b": 0, "c": 10}
    made.updated("c", 12)
    standing = Standing(
        clusters=("a", "b", "c"),
        epoch=3,
        committed=0,
        opened=0,
        updates=dict(made.updates),
        averaged=made.averaged,
        snapshots={},
        knows={},
        evaluation=0,
        elapsed_s=60.0,
        begun=made.begun,
    )
    standing = replace(standing, unmade=made.unmade)
    again = accounts(clusters={"a": 1, "b": 2, "c": 1}, standing=standing)
    assert again.unmade == {"c": 10}
    resumed = {"start_updates": {"a": 20, "c": 12}, "start_samples": 22 * 12, "start_unmade": made.unmade}
    assert accounts(clusters={"a": 1, "c": 1}, **resumed).unmade == {"c": 10}
    assert (again.samples, again.made_by("c")) == (made.samples, made.made_by("c")) == (22 * 12, 2 * 12)


def handed_on(round_=None):
    """b has made 5 updates, of which 2 are in a committed round and 4 in round 2. It leaves, and a has the rest."""
    made = accounts()
    made.updated("a", 3)
    made.updated("b", 5)
    made.snapshot(1, "b", 2)
    made.snapshot(2, "b", 4)
    made.committed(1)
    made.handed_on("b", "a")
    assert made.dropped("b") == 0
    if round_ is not None:
        made.is_given("b", round_)
    return made


def test_what_is_handed_on_counts_when_the_round_is_committed_that_has_it():
    made = handed_on(round_=3)
    assert (made.updates["b"], made.averaged["b"], made.goes_on_at("b"), made.holds("a")) == (5, 2, 5, True)
    made.restarted(kept=[])
    made.committed(2)
    assert made.averaged["b"] == 2
    made.committed(3)
    assert (made.averaged["b"], made.samples, made.holds("a")) == (5, 8 * 12, False)


def test_it_is_settled_once_it_is_known_what_becomes_of_the_rounds_that_it_was_in():
    made = handed_on()
    assert not made.settled("b")
    made.restarted(kept=[2])
    assert not made.settled("b")
    made.committed(2)
    assert made.settled("b")
    assert (made.averaged["b"], made.updates["b"]) == (4, 5)
    made.committed(3)
    assert made.averaged["b"] == 4


def test_what_is_lost_with_who_had_it_is_made_anew():
    made = handed_on(round_=3)
    made.restarted(kept=[])
    assert made.dropped("a") == (3 + 3) * 12
    assert (made.updates, made.goes_on_at("b"), made.samples) == ({"a": 0, "b": 2}, 2, 2 * 12)


def test_where_the_cluster_has_gone_on_what_is_lost_counts_no_more():
    made = handed_on(round_=3)
    made.restarted(kept=[])
    assert made.begins("b") == 5
    made.updated("b", 6)
    assert made.dropped("a") == (3 + 3) * 12
    assert made.samples == (6 - 3) * 12
    made.snapshot(3, "b", 6)
    made.committed(3)
    assert made.samples_of(made.averaged) == (6 - 3) * 12
