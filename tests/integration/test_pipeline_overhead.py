"""The two measurements of overhead on real processes and sockets, as short as can be: that they work, not how much."""

import pytest

from experiments.pipeline.overhead import one_stage, two_stages


def test_two_stage_processes_account_for_all_their_time() -> None:
    found = two_stages(updates=2, warm_up=1)
    assert [row.stage for row in found] == ["c0.s0", "c0.s1"]
    for row in found:
        assert row.compute_ms > 0
        assert row.compute_ms + row.handoff_ms + row.waiting_ms == pytest.approx(row.wall_ms, rel=0.25)


def test_one_stage_takes_turns_with_a_plain_loop() -> None:
    found = one_stage(blocks=1, updates=1)
    assert found.ratio == pytest.approx(found.stage_ms / found.plain_ms)
    assert found.plain_ms > 0
