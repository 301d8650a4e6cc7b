import random

import pytest

from ravnest.recovery.slowness import NEW, STAYS_S, USUAL, NodeSlow, Slowness

UPDATE_S = 1.0


class Stage:
    """A stage that makes an update each second, for which it computes as long as it is told."""

    def __init__(self):
        self.slowness, self.update, self.spent_s, self.now_s, self.said = Slowness(), 0, 0.0, 0.0, []

    def work(self, seconds, updates, node="desk"):
        for _ in range(updates):
            self.update, self.spent_s = self.update + 1, self.spent_s + seconds
            self.now_s += max(UPDATE_S, seconds)
            found = self.slowness.worked("c0.s1", node, self.update, self.spent_s, self.now_s)
            if found is not None:
                self.said.append(found)


@pytest.fixture
def stage():
    made = Stage()
    made.work(0.5, 1)
    made.work(5.0, NEW)  # caches are new
    made.work(0.1, USUAL + 100)
    assert made.said == []
    return made


def test_a_node_that_stays_slow_is_told_once_and_when_it_is_well_again(stage):
    stage.work(0.4, int(2 * STAYS_S))
    assert stage.said == [NodeSlow("c0.s1", "desk", 4.0)]
    stage.work(0.1, int(2 * STAYS_S))
    assert stage.said[1:] == [NodeSlow("c0.s1", "desk", 1.0)]


def test_one_that_is_slow_for_a_moment_is_not(stage):
    for _ in range(5):
        stage.work(2.0, int(STAYS_S // 5))
        stage.work(0.1, int(STAYS_S))
    assert stage.said == []


def test_one_ten_times_as_slow_is_told_though_it_makes_few_updates(stage):
    stage.work(20.0, 30)
    (said,) = stage.said
    assert said.times == 200.0


def test_another_process_is_compared_with_itself(stage):
    stage.spent_s = 0.0
    stage.work(0.4, USUAL + NEW + 200)
    stage.work(0.9, USUAL + NEW + 200, node="laptop")
    assert stage.said == []


def test_late_and_doubled_reports_change_nothing(stage):
    for _ in range(50):
        assert stage.slowness.worked("c0.s1", "desk", stage.update, stage.spent_s, stage.now_s) is None
        assert stage.slowness.worked("c0.s1", "desk", stage.update - 3, stage.spent_s, stage.now_s) is None
    stage.work(0.1, int(2 * STAYS_S))
    assert stage.said == []


@pytest.mark.parametrize("seed", range(5))
def test_a_node_whose_times_vary_is_not_slow(seed):
    chance, stage = random.Random(seed), Stage()
    for _ in range(1000):
        stage.work(chance.lognormvariate(-2.0, 0.3), 1)
    assert stage.said == []


def test_where_all_become_slow_together_nobody_is():
    """Two stages share a machine, which gets other work to do."""
    slowness, spent = Slowness(), {"c0.s0": 0.0, "c1.s0": 0.0}
    for update in range(400):
        for stage in spent:
            spent[stage] += 0.1 if update < 150 else 0.5
            assert slowness.worked(stage, stage, update, spent[stage], float(update)) is None
    told = []
    for update in range(400, 600):
        for stage in spent:
            spent[stage] += 0.5 if stage == "c1.s0" else 2.0
            told.append(slowness.worked(stage, stage, update, spent[stage], float(update)))
    (said,) = [each for each in told if each is not None]
    assert (said.stage, said.times) == ("c0.s0", 4.0)
