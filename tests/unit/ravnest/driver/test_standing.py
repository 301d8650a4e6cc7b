"""Where a session stands, by what was written down and what stages say."""

import msgspec

from ravnest.driver.standing import Standing
from tests.support.takeover import STATE, position

STAGES = {"c0": 2, "c1": 2}


def test_stages_have_gone_on_since_the_file_was_written() -> None:
    at = {
        "c0.s0": position(24, (2, 16), (3, 22), epoch=5),
        "c0.s1": position(25, (2, 16), (3, 22)),
        "c1.s0": position(19, (2, 15), (3, 18), evaluation=2),
        "c1.s1": position(19, (3, 18)),
    }
    standing = Standing.of(STATE, at, STAGES)
    assert standing.whole == ["c0", "c1"]
    assert standing.updates == {"c0": 25, "c1": 19}
    assert standing.averaged == {"c0": 16, "c1": 15}
    assert standing.snapshots == {3: {"c0": 22, "c1": 18}}
    assert (standing.epoch, standing.committed, standing.opened, standing.evaluation) == (5, 2, 3, 2)
    assert standing.knows == {"c0": 3, "c1": 3}


def test_a_round_that_one_stage_has_merged_is_committed_for_all() -> None:
    at = dict.fromkeys(STATE.stages, position(25, (2, 16), (3, 22))) | {"c0.s0": position(25, (3, 22), committed=3)}
    standing = Standing.of(STATE, at, STAGES)
    assert standing.committed == standing.opened == 3
    assert standing.averaged == {"c0": 22, "c1": 22}
    assert standing.snapshots == {}


def test_a_cluster_without_one_of_its_stages_is_missing_and_what_it_gave_is_known() -> None:
    at = {"c0.s0": position(24, (2, 16)), "c0.s1": position(24, (2, 16))}
    standing = Standing.of(STATE, at, STAGES)
    assert standing.missing == {"c1": "c1.s0"}
    assert standing.whole == ["c0"]
    assert standing.updates == {"c0": 24, "c1": 18}
    assert standing.averaged == {"c0": 16, "c1": 15}
    assert standing.snapshots == {3: {"c1": 18}}


def test_a_cluster_that_was_away_has_what_it_had_averaged() -> None:
    there = {name: at for name, at in STATE.stages.items() if name.startswith("c0")}
    state = msgspec.structs.replace(STATE, stages=there, updates={"c0": 20}, averaged={"c0": 16, "c1": 11})
    at = {"c0.s0": position(24), "c0.s1": position(24)}
    standing = Standing.of(state, at, STAGES)
    assert standing.clusters == ("c0",)
    assert standing.missing == {}
    assert standing.updates == {"c0": 24, "c1": 11}


def test_before_the_first_commit_nothing_is_averaged_but_what_the_session_began_with() -> None:
    state = msgspec.structs.replace(STATE, committed=0, opened=0, updates={}, averaged={}, snapshots={})
    at = dict.fromkeys(STATE.stages, position(6, opened=0, committed=0))
    standing = Standing.of(state, at, STAGES)
    assert standing.averaged == {"c0": 5, "c1": 5}
    assert standing.updates == {"c0": 6, "c1": 6}
