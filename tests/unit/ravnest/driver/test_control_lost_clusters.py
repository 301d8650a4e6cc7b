"""RunControl when a cluster is lost: `a` has two stages, `b` one; an update is 12 samples, a round 24."""

from ravnest.driver import control as c
from ravnest.driver import instructions as ins
from ravnest.driver.accounts import RunShape
from ravnest.stage import epoch_messages as em
from ravnest.stage import messages as m
from ring_allreduce.rounds import RoundOwner

RINGS = {"0": ["a.s0", "b.s0"], "1": ["a.s1", "b.s0"]}
CLUSTERS = {"a.s0": "a", "a.s1": "a", "b.s0": "b"}


def control(evaluate_every=1_000):
    shape = RunShape(
        clusters={"a": 2, "b": 1},
        evaluators=("a", "b"),
        samples_per_update=12,
        stop_samples=None,
        stop_s=None,
        evaluate_every=evaluate_every,
        held_out_batches=5,
    )
    return c.RunControl(shape, RoundOwner(RINGS, average_every=24, on_loss="reform", clusters=CLUSTERS))


def told(instructions, kind):
    return [each.message for each in instructions if isinstance(each, ins.SendToStage) and type(each.message) is kind]


def of(instructions, kind):
    return [each for each in instructions if isinstance(each, kind)]


def updated(run, last, update):
    return run.handle(last, m.Updated(update=update, staleness=(0,), losses=(1.0,), lr=0.1))


def b_is_lost_in_round_1(holding):
    """Both clusters contribute to round 1, b is lost, and a's stages answer that they hold these averages."""
    run = control()
    for last, update in (("a.s1", 0), ("a.s1", 1), ("b.s0", 0)):
        updated(run, last, update)
    for stage, update in (("a.s0", 2), ("b.s0", 1)):
        run.handle(stage, m.ContributionFinishedMessage(round=1, update=update))
    out = run.lost("b.s0", "killed")
    (lost,) = of(out, ins.RecordClusterLost)
    assert (lost.samples, lost.left) == (12, ("a",))
    for stage, held in holding.items():
        out += run.handle(stage, em.RoundsHeld(epoch=1, holding=held))
    (resumed,) = set(told(out, em.RoundsResumedMessage))
    for ring, stage in ((0, "a.s0"), (1, "a.s1")):
        out += run.handle(stage, m.RingFinishedMessage(round=1, ring=ring, epoch=1))
    (begun,) = of(out, ins.BeginCheckpoint)
    return run, resumed, begun


def test_what_a_lost_cluster_gave_to_a_round_that_starts_again_does_not_count():
    run, resumed, begun = b_is_lost_in_round_1({"a.s0": ((0, 1),), "a.s1": ()})
    assert resumed.kept == ()
    assert (begun.samples, begun.updates, begun.lost) == (24, {"a": 2, "b": 0}, ("b",))
    assert run.samples == 24


def test_what_a_lost_cluster_gave_to_a_round_that_is_kept_counts():
    run, resumed, begun = b_is_lost_in_round_1({"a.s0": ((0, 1),), "a.s1": ((1, 1),)})
    assert resumed.kept == (1,)
    assert (begun.samples, begun.updates, begun.lost) == (36, {"a": 2, "b": 1}, ("b",))
    assert run.samples == 36


def test_the_end_of_a_run_does_not_wait_for_the_evaluation_of_a_lost_cluster():
    run = control(evaluate_every=12)
    assert told(updated(run, "a.s1", 0), m.Evaluate)
    run.stop(evaluate=False)
    run.handle("b.s0", m.Drained(micro_batches=0, updates=0))
    assert told(run.lost("a.s1", "killed"), m.Evaluate) == []
    assert run.phase is ins.RunPhase.FINISHING


def test_another_cluster_evaluates_in_the_place_of_a_lost_one():
    run = control(evaluate_every=12)
    updated(run, "a.s1", 0)
    (again,) = told(run.lost("a.s0", "killed"), m.Evaluate)
    assert again.evaluation == 2
    assert of(run.handle("b.s0", m.EvaluationFinished(evaluation=2, loss=(1.0, 1), metrics=())), ins.RecordEvaluation)
