"""A cluster that leaves hands on what it has made: real stages over the in-process transport."""

import random

import pytest
import torch

from ravnest.driver.instructions import RunPhase
from tests.support.local import local_run, tiny_job
from tests.unit.ravnest.driver.test_in_process_leaving import come_and_go, counted, leave
from tests.unit.ravnest.driver.test_in_process_rejoining import anchors_agree, forward

JOB = {"average_every": 100_000, "stop": {"samples": 480}}


class Slow:
    """A run whose rings stand still, as on lines that are too slow for a round, until they are let go."""

    def __init__(self, turns=50, parts=(1, 2), **changes):
        self.run = local_run(tiny_job(**{**JOB, **changes}), parts=parts)
        forward(self.run, turns)
        self._pumps = {stage: stage.rings.pump for stage in self.run.stages.values()}
        for stage in self.run.stages.values():
            stage.rings.pump = list
        self.made = {}
        """By ring: what c1 had made when it was last looked."""

    def out(self, most=400):
        """Let c1 leave, and turn until it is out."""
        leave(self.run, "c1")
        for _ in range(most):
            if self.run.result.lost:
                return self
            for name, stage in self.run.stages.items():
                for ring in stage.rings.segments if name.startswith("c1.") else ():
                    found = stage.rounds.unmerged(ring)
                    if found is not None:
                        self.made[ring] = found[1]
            self.run.turn()
        raise AssertionError("it has not left")

    def go(self):
        """The rings go on."""
        for stage, pump in self._pumps.items():
            stage.rings.pump = pump
        return self


@pytest.mark.parametrize(("parts", "turns"), [((2, 2), 50), ((1, 3), 50), ((3, 1, 2), 61)])
def test_a_cluster_is_out_before_any_round_has_what_it_made(parts, turns):
    run = Slow(turns, parts).out().run
    (left,) = run.result.lost
    assert (left.cluster, left.samples, left.with_notice) == ("c1", 0, True)
    assert run.control.rounds.committed == 0
    assert run.control.accounts.averaged["c1"] == 0
    assert run.control.updates["c1"] > 0
    (handed,) = run.result.handed_on
    assert (handed.cluster, handed.samples) == ("c1", 12 * run.control.updates["c1"])
    assert handed.to in run.control.clusters


@pytest.mark.parametrize("parts", [(2, 2), (1, 3), (3, 1)])
@pytest.mark.parametrize("weighting", ["samples", "equal"])
def test_another_gives_it_to_the_next_round_by_its_weight(parts, weighting):
    slow = Slow(parts=parts, averaging={"weighting": weighting})
    given = {}
    for name, stage in slow.run.stages.items():
        if name.startswith("c0."):
            spy(stage, given)
    begins = {ring: stage.rounds.anchor(ring).clone() for stage in c0(slow.run) for ring in stage.rings.segments}
    run = slow.out().go().run
    made = run.control.updates["c1"]
    run.run()
    assert run.control.accounts.averaged["c1"] == run.control.updates["c1"] == made
    assert counted(run) == run.control.samples
    assert slow.made.keys() == begins.keys()
    for ring, parts_of in slow.made.items():
        theirs = sum(part.progress for part in parts_of)
        samples = sum(part.samples for part in parts_of)
        expected = begins[ring].clone()
        mixed = 0
        for own, behind, vector, weight in given[ring]:
            if torch.allclose(own, vector, rtol=1e-5, atol=1e-7):
                expected += own
                continue
            mixed += 1
            a, b = (behind, samples) if weighting == "samples" else (float(behind > 0), 1.0)
            mean = (a * own + b * theirs) / (a + b)
            assert weight == a + b
            torch.testing.assert_close(vector, mean, rtol=1e-5, atol=1e-7)
            expected += mean
        assert mixed == 1
        [stage] = [each for each in c0(run) if ring in each.rings.segments]
        torch.testing.assert_close(stage.rounds.anchor(ring), expected, rtol=1e-5, atol=1e-6)


def c0(run):
    return [stage for name, stage in run.stages.items() if name.startswith("c0.")]


def spy(stage, given):
    """Note what a stage gives to rounds: its own progress, the samples behind it, and what it gives in the end."""
    plain, owns = stage.rounds.snapshot, {}

    def snapshot(number, samples, only=None):
        out = []
        for segment in stage.rings.segments.values():
            pending = [own for (ring, of), own in owns.items() if ring == segment.ring and of > stage.rounds.merged]
            live = stage.compute.weights.flat(segment.parameters)
            owns[segment.ring, number] = live - stage.rounds.anchor(segment.ring) - sum(pending)
        for each in plain(number, samples, only):
            given.setdefault(each.ring, []).append((owns[each.ring, number], samples, each.vector, each.weight))
            out.append(each)
        return out

    stage.rounds.snapshot = snapshot


def test_it_goes_on_where_it_had_come_to_and_no_sample_counts_twice():
    run = Slow().out().go().run
    made = run.control.updates["c1"]
    run.rejoin("c1")
    while not run.result.trains:
        run.turn()
    assert run.control.updates["c1"] == made
    run.run()
    assert run.control.updates["c1"] > made
    assert counted(run) == run.control.samples
    assert anchors_agree(run)


def test_what_the_cluster_that_took_it_loses_is_made_anew_by_the_one_that_made_it():
    slow = Slow(parts=(1, 2, 1))
    run = slow.out().run
    made = run.control.updates["c1"]
    [taker] = [name for name in ("c0", "c2") if run.control.accounts.holds(name)]
    run.lose(f"{taker}.s0")
    assert run.control.updates["c1"] == 0
    assert run.result.lost[-1].samples >= 12 * made
    slow.go()
    run.rejoin("c1")
    run.run()
    assert anchors_agree(run)
    assert counted(run) - sum(each.samples for each in run.result.lost) == run.control.samples


def test_what_is_lost_after_it_has_gone_on_counts_no_more():
    slow = Slow(parts=(1, 2, 1))
    run = slow.out().run
    [taker] = [name for name in ("c0", "c2") if run.control.accounts.holds(name)]
    slow.go()
    run.rejoin("c1")
    while not run.result.trains:
        run.turn()
    if run.control.accounts.holds(taker):
        run.lose(f"{taker}.s0")
    run.run()
    assert anchors_agree(run)
    assert counted(run) - sum(each.samples for each in run.result.lost) == run.control.samples


def test_robust_rounds_compare_members_so_nothing_is_handed_on():
    run = local_run(tiny_job(**{**JOB, "averaging": {"robust": "trimmed_mean"}}), parts=(1, 1, 1, 1))
    forward(run, 50)
    leave(run, "c1")
    while not run.result.lost:
        run.turn()
    assert run.control.rounds.committed > 0
    assert run.result.lost[0].samples == 0
    assert not any(run.control.accounts.holds(name) for name in run.control.clusters.names)


@pytest.mark.parametrize("seed", range(6))
def test_at_any_moment_nothing_is_lost_of_who_leaves_and_nothing_counts_twice(seed):
    """Rings stand still and go on by chance, so that rounds and handing on overtake each other."""
    chance = random.Random(seed)
    stuck = {"now": False}
    run = local_run(
        tiny_job(average_every=48, stop={"samples": 600}, max_lag=1 + seed % 3, evaluate_every=192),
        parts=(2, 1, 3),
        stands_by=seed % 2 == 0,
        order=lambda stages: chance.sample(stages, k=chance.randint(1, len(stages))) if stages else stages,
    )

    def hold(stage):
        plain = stage.rings.pump
        stage.rings.pump = lambda: [] if stuck["now"] else plain()

    for stage in run.stages.values():
        hold(stage)

    def change():
        stuck["now"] = chance.random() < 0.6

    come_and_go(run, chance, most=50, before=change)
    stuck["now"] = False
    run.run()
    assert run.control.phase is RunPhase.DONE
    assert anchors_agree(run)
    assert all(each.samples == 0 for each in run.result.lost if each.with_notice)
    assert run.control.samples <= counted(run)
