"""The parts on small sizes: what they compute, and that their checks can fail. CI runs rate and blocks whole, too."""

import math
from dataclasses import replace

import numpy as np
import pytest

from experiments.convergence import blocks, curves, rate, speedup, staleness
from experiments.convergence.objectives import Quadratic
from experiments.convergence.transient import Transient


def test_two_clusters_need_half_the_updates_each():
    found = speedup.efficiency("quadratic", speedup.SHORT, speedup.Sizes((1, 2), 2**10, ("quadratic",), 16))
    assert found.needed[0] == pytest.approx(2**10)
    assert found.efficiency[0] == pytest.approx(1)
    assert found.efficiency[1] == pytest.approx(1, abs=0.15)
    assert found.low[1] < found.efficiency[1] < found.high[1]


def test_an_error_that_is_not_reached_is_said_so_and_not_counted_as_linear():
    found = speedup.Found((1, 8), (64.0, math.inf), (1.0, 0.0), (1.0, 0.0), (1.0, 0.0), (1.0, 0.0), 0.1)
    (claim,) = speedup.judged("quadratic", speedup.SHORT, found)
    assert claim.held is False
    assert "not reached" in claim.measured
    (claim,) = speedup.judged("quadratic", speedup.LONG, replace(found, promised=(1.0, 1.0)))
    assert claim.held is False, "a departure from what is promised is none that the theorem explains"


def test_long_rounds_cost_what_feels_drift_and_no_quadratic_unless_the_step_is_small():
    size = speedup.Sizes((1, 8), 2**11, (), 8)
    found = {
        (name, kind): speedup.efficiency(name, kind, size).efficiency[1]
        for name, kind in (
            ("quadratic", speedup.LONG),
            ("quadratic", speedup.LONG_BOLD),
            ("tilted", speedup.LONG_BOLD),
        )
    }
    assert found["quadratic", speedup.LONG] < 0.9
    assert found["quadratic", speedup.LONG_BOLD] == pytest.approx(1, abs=0.03)
    assert found["tilted", speedup.LONG_BOLD] < 0.7


def test_thresholds_of_staleness_are_above_the_predicted_and_grow():
    size = staleness.Sizes((2**6, 2**8), (0, 4, 8, 16, 32), 2**6, (1, 4), (1, 4), (0, 32), 8)
    (threshold, growth), (table,), (panel,) = staleness.judged_delays(size)
    assert threshold.held
    assert panel.series[-1].label == "threshold, predicted"
    assert growth.held is not None
    assert len(table.rows) == 8


def test_lag_at_one_step_hurts_beyond_what_is_predicted_and_rounds_do():
    size = staleness.Sizes((2**6,), (0,), 2**8, (1, 64), (1, 32), (0,), 8)
    for (claim,), (table,), (panel,) in (staleness.judged_lag(size), staleness.judged_rounds(size)):
        assert claim.held
        assert [row[0] for row in table.rows] == panel.series[0].x
        assert table.rows[0][4] == pytest.approx(1)
        assert table.rows[1][4] > 1.1
        assert table.rows[0][2] < table.rows[1][2]


def test_a_line_that_breaks_down_ends_at_the_top():
    drawn = staleness.until_broken([1.0, 2.0, 4.0, 8.0], [1.0, 3.0, math.inf, math.inf])
    assert drawn == ([1.0, 2.0, 4.0], [1.0, 3.0, staleness.MOST_DRAWN])


def test_the_control_that_is_a_constant_step_fails_and_a_true_curve_passes():
    lengths = [2**power for power in range(6, 14)]
    noise = np.exp(0.02 * np.random.default_rng(0).standard_normal((len(lengths), 8)))
    good = curves.Curve("good", lengths, np.asarray(lengths)[:, None] ** -0.5 * noise, [1.0] * len(lengths))
    flat = curves.Curve("flat", lengths, (0.1 + 1 / np.asarray(lengths))[:, None] * noise, [1.0] * len(lengths))
    assert [claim.held for claim in rate.judged(good)] == [True, True]
    assert [claim.held for claim in rate.judged(flat)] == [False, True]
    above = curves.Curve("above", lengths, good.errors, [0.01] * len(lengths))
    assert [claim.held for claim in rate.judged(above)] == [True, False]


def test_a_slope_is_fitted_beyond_the_transient_and_not_judged_from_too_few_octaves():
    lengths = [2**power for power in range(6, 14)]
    noise = np.exp(0.02 * np.random.default_rng(0).standard_normal((len(lengths), 8)))
    errors = np.where(np.arange(8) < 4, 1024**-0.5, np.asarray(lengths) ** -0.5)[:, None] * noise
    bounds = [1.0] * len(lengths)
    over, left = Transient(1.0, 0.01, 0.01), Transient(1.0, 0.03, 0.01)
    unaware = curves.Curve("flat at first", lengths, errors, bounds)
    assert rate.judged(unaware)[0].held is False
    aware = curves.Curve("flat at first", lengths, errors, bounds, [left] * 4 + [over] * 4)
    assert rate.judged(aware)[0].held is True
    assert "K = 1024 to 8192" in rate.judged(aware)[0].statement
    again = curves.Curve("not yet", lengths, errors, bounds, [over] * 4 + [left] + [over] * 3)
    assert again.settled == 5
    claim, _ = rate.judged(again)
    assert claim.held is None
    assert "not judged" in claim.measured
    never = curves.Curve("never", lengths, errors, bounds, [left] * 8)
    assert rate.judged(never)[0].held is None


def test_a_pipeline_that_was_as_bad_as_its_oldest_stage_would_not_pass():
    steps = (1.0, 2.0)
    none, mean, most = (np.full((2, 8), value) + np.linspace(0, 0.01, 8) for value in (1.0, 1.1, 2.0))
    errors = {"no delay": none, "pipeline": most, "uniform, same mean": mean, "uniform, same maximum": most}
    error, _ = blocks.judged(Quadratic(), errors, blocks.Sizes(8, steps, 8))
    assert error.held is False
    error, _ = blocks.judged(Quadratic(), {**errors, "pipeline": mean}, blocks.Sizes(8, steps, 8))
    assert error.held is True


def test_the_place_of_a_pipeline_has_an_interval_of_all_three_errors():
    random = np.random.default_rng(0)
    mean, most = 1.0 + 0.2 * random.standard_normal(64), 2.0 + 0.2 * random.standard_normal(64)
    assert blocks.share_interval((mean + most) / 2, mean, most).mean == pytest.approx(0.5)
    alone, with_others = (
        blocks.share_interval(np.full(64, 1.2), *two) for two in ((mean * 0 + 1, mean * 0 + 2), (mean, most))
    )
    assert alone.high == pytest.approx(alone.low)
    assert with_others.high - with_others.low > 0.03
