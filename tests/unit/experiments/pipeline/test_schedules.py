"""Issue 5's claims on throughput, in the virtual clock; the figures: python -m experiments.pipeline.schedules."""

import pytest

from experiments.pipeline.schedules import UPDATE_EVERY, row, table


@pytest.mark.parametrize("slow", [None, 1])
@pytest.mark.parametrize("stages", UPDATE_EVERY)
def test_the_slowest_stage_is_busy_at_any_latency_and_throughput_does_not_fall(stages: int, slow: int | None) -> None:
    found = [row("async", stages, UPDATE_EVERY[stages], latency_s, slow, 400) for latency_s in (0.0, 0.02, 0.1)]
    assert all(each.busy >= 0.97 for each in found)
    assert found[-1].micro_batches_per_s >= 0.95 * found[0].micro_batches_per_s
    assert all(each.max_staleness == 1 for each in found)


def test_it_beats_gpipe_at_four_stages_and_micro_batches_without_latency_and_more_so_with_it() -> None:
    gains = [
        row("async", 4, 16, latency_s, None, 300).micro_batches_per_s
        / row("gpipe", 4, 4, latency_s, None, 80).micro_batches_per_s
        for latency_s in (0.0, 0.1)
    ]
    assert gains[0] >= 1.6
    assert gains[1] >= 4.0


def test_rows_read_as_a_table() -> None:
    shown = table([row("async", 4, 16, 0.0, 1, 200), row("1f1b", 4, 4, 0.0, None, 40)])
    assert [len(cells) for cells in shown.rows] == [len(shown.columns)] * 2
    assert shown.rows[0][:3] == (4, "stage 1, 1.5x", "async")
    assert shown.rows[1][2:6] == ("1f1b", 4, 0, "4")
