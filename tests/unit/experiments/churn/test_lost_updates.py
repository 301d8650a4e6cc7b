import pytest

from experiments.churn.lost_updates import AGAIN, AWAY, OTHERS, SILENT, USUAL, missing
from ravnest.simulator.simulated_run import Absence


def test_missing_updates_are_told_by_what_went_on() -> None:
    every = [float(at_s) for at_s in range(1, 101)]
    free = {"c0": every, "c1": every}
    made = {
        "c0": [at_s for at_s in every if not 10 < at_s <= 40 and at_s not in (45.0, 46.0)],
        "c1": [at_s for at_s in every if at_s not in (20.0, 90.0)],
    }
    lost = Absence("c0", "n0", silent_from_s=10.0, lost_s=15.0, made=10, back_s=40.0)
    shares = missing(free, made, [lost], 100.0)
    assert shares == {
        SILENT: pytest.approx(5 / 200),
        AWAY: pytest.approx(25 / 200),
        AGAIN: pytest.approx(2 / 200),
        OTHERS: pytest.approx(1 / 200),
        USUAL: pytest.approx(1 / 200),
    }
    assert sum(shares.values()) == pytest.approx(1 - sum(map(len, made.values())) / 200)


def test_a_cluster_that_stays_away_is_away_until_the_end() -> None:
    every = [float(at_s) for at_s in range(1, 11)]
    shares = missing({"c0": every}, {"c0": every[:5]}, [Absence("c0", "n0", 5.0, 5.0, 5)], 10.0)
    assert shares[AWAY] == pytest.approx(0.5)
