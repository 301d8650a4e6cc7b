from types import SimpleNamespace
from typing import Any, cast

import pytest

from experiments.churn import missing_samples as ms
from ravnest.simulator import SimulatedRun

BEST = [(0.0, 10.0, 5), (50.0, 20.0, 8)]
KNOWN = [(0.0, 10.0, 5), (60.0, 20.0, 8)]


def run(*, over_time: list[tuple[float, float]], kept: float, **told: Any) -> SimulatedRun:
    made = {"clusters_lost": (), "begun_anew": (), "goodput_per_s": kept / 100.0, "end_s": 100.0, **told}
    return cast(SimulatedRun, SimpleNamespace(over_time=tuple(over_time), **made))


def lost(silent_from_s: float, lost_s: float, back_s: float | None, samples: int) -> SimpleNamespace:
    return SimpleNamespace(silent_from_s=silent_from_s, lost_s=lost_s, back_s=back_s, samples=samples)


def test_a_run_that_makes_all_that_can_be_known_lacks_only_what_nobody_knows() -> None:
    found = ms.missing_samples(BEST, KNOWN, run(over_time=[(60.0, 10.0), (100.0, 20.0)], kept=1400.0), 100.0)
    assert found.pop(ms.UNKNOWN) == pytest.approx(100.0 / 1500.0)
    assert found == pytest.approx(dict.fromkeys(found, 0.0), abs=1e-12)


def test_each_phase_has_its_part_and_all_of_them_are_what_is_missing() -> None:
    told = run(
        over_time=[(60.0, 5.0), (100.0, 20.0)],  # 300 in the 50 s of the first span in which a session trained
        kept=1040.0,
        clusters_lost=(lost(20.0, 30.0, None, 24), lost(70.0, 75.0, 80.0, 0)),
        begun_anew=(SimpleNamespace(lost_s=40.0, began_s=50.0, samples=36),),
    )
    found = {phase: share * 1500.0 for phase, share in ms.missing_samples(BEST, KNOWN, told, 100.0).items()}
    assert found[ms.PAUSED] == pytest.approx(10 * 10.0)
    assert found[ms.AWAY] == pytest.approx(20 * (10.0 - 6.0))  # to the end of its session, and it lacks nothing later
    assert found[ms.THERE] == pytest.approx((20 + 10) * (10.0 - 6.0))
    assert (found[ms.LOST], found[ms.ROLLED_BACK]) == (24, 36)
    assert sum(found.values()) == pytest.approx(1500.0 - 1040.0)


def test_where_nothing_could_be_made_nothing_is_missing() -> None:
    found = ms.missing_samples([(0.0, 0.0, 0)], [(0.0, 0.0, 0)], run(over_time=[], kept=0.0), 100.0)
    assert set(found.values()) == {0.0}
