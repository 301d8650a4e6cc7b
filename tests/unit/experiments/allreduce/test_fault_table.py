"""What is said about scenarios follows from what happened in them."""

from dataclasses import replace

import pytest

from experiments.allreduce.fault_plan import did_not_strike, last_epoch, scenario, words_of
from experiments.allreduce.fault_table import COLUMNS, rows_of


def test_words_name_who_ended_how_and_the_epoch():
    plan = replace(scenario("killed", 0), members=4, victim=1)
    ends = {"m0": "completed", "m1": "killed", "m2": "completed", "m3": "completed"}
    assert words_of(plan, ends, 2) == "all others: completed; victim: killed; epoch 2"
    odd = {**ends, "m3": "LeftOut"}
    assert words_of(plan, odd, 3) == "1 other: LeftOut; 2 others: completed; victim: killed; epoch 3"
    joined = replace(plan, fault="leaves, and a newcomer")
    ends = dict.fromkeys([*plan.names, "m4"], "completed")
    assert words_of(joined, ends, 3) == "victim, newcomer, all others: completed; epoch 3"


@pytest.mark.parametrize(
    ("fault", "shown"),
    [("killed", {"epoch": 2}), ("duplicated frames", {"struck": "so"}), ("corrupt header", {"dropped": 1})],
)
def test_a_fault_has_to_strike(fault, shown):
    plan = replace(scenario(fault, 0), members=3)
    nothing = {"m0": [{"done": [], "epoch": 1, "dropped": 0}]}
    assert did_not_strike(plan, nothing)
    assert not did_not_strike(plan, {**nothing, "m1": [shown]})
    assert not did_not_strike(replace(plan, fault="none"), nothing)


def test_the_last_epoch():
    assert last_epoch({"m0": [{"epoch": 1}, {"end": "completed"}], "m1": [{"epoch": 3}]}) == 3
    assert last_epoch({"m0": []}) == 0


def test_virtual_seconds_stand_apart_and_nothing_is_cut_off():
    one = {"fault": "killed", "way": "ring", "outcome": "x"}
    found = [
        {**one, "where": "processes", "seconds_lost": -0.5},
        {**one, "where": "processes", "seconds_lost": -0.5, "way": "direct"},
        {**one, "where": "in memory", "seconds_lost": 2.0},
    ]
    real, virtual = (dict(zip(COLUMNS, row, strict=True)) for row in rows_of(found))
    assert (real["s lost"], real["virtual s lost"], real["way"]) == ("-0.5 (-0.5–-0.5)", None, "1 ring, 1 direct")
    assert (virtual["s lost"], virtual["virtual s lost"], virtual["where"]) == (None, "2 (2–2)", "in memory")
