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
