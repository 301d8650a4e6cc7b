"""RunControl, driven by hand: cluster `a` has two stages, `b` one; an update is 12 samples, a round 24."""

from dataclasses import replace

import pytest

from ravnest.driver import control as c
from ravnest.driver import instructions as ins
from ravnest.driver.accounts import RunShape
from ravnest.errors import RunFailed
from ravnest.stage import messages as m
from ravnest.stage import state_messages as sm
from ring_allreduce.rounds import RoundOwner

RINGS = {"0": ["a.s0", "b.s0"], "1": ["a.s1", "b.s0"]}
STAGES = ["a.s0", "a.s1", "b.s0"]
SHAPE = RunShape(
    clusters={"a": 2, "b": 1},
    evaluators=("a", "b"),
    samples_per_update=12,
    stop_samples=None,
    stop_s=None,
    evaluate_every=1_000,
    held_out_batches=5,
)


def control(**changes):
    return c.RunControl(replace(SHAPE, **changes), RoundOwner(RINGS, average_every=24))


def told(instructions, kind):
    """Who is told a message of `kind`, and what."""
    found = [(each.peer, each.message) for each in instructions if isinstance(each, ins.SendToStage)]
    return [(peer, message) for peer, message in found if isinstance(message, kind)]


def of(instructions, kind):
    return [each for each in instructions if isinstance(each, kind)]


def updated(run, cluster, update):
    last = {"a": "a.s1", "b": "b.s0"}[cluster]
    return run.handle(last, m.Updated(update=update, staleness=(0,), losses=(1.0,), lr=0.1))


def ring_finished(run, round_):
    """Every member reports every ring of the round; what follows from the last report."""
    out = []
    for ring, members in RINGS.items():
        for member in members:
            out += run.handle(member, m.RingFinishedMessage(round=round_, ring=int(ring), epoch=0))
    return out


def drained(run, cluster, updates):
    return run.handle(f"{cluster}.s0", m.Drained(micro_batches=3 * updates, updates=updates))


def rounds_finished(run, up_to, stages=STAGES):
    return [each for stage in stages for each in run.handle(stage, m.RoundsFinished(up_to=up_to))]


def state_sent(run, round_):
    return [each for stage in STAGES for each in run.handle(stage, sm.StateSent(round=round_, pieces=1))]


def snapshots(run, round_, **updates):
    for cluster, update in updates.items():
        run.handle(f"{cluster}.s0", m.ContributionFinishedMessage(round=round_, update=update))


def to_the_last_evaluation(run):
    """Drain with one update made in each cluster, up to the evaluation of the anchor."""
    updated(run, "a", 0)
    run.stop(evaluate=True)
    drained(run, "a", 1)
    drained(run, "b", 0)
    ring_finished(run, 1)
    state_sent(run, 1)
    return rounds_finished(run, 1)


def test_a_round_opens_by_the_samples_of_the_whole_fleet_at_the_last_stages():
    run = control()
    assert updated(run, "a", 0) == []
    assert told(updated(run, "b", 0), m.RoundOpenedMessage) == [
        ("a.s1", m.RoundOpenedMessage(round=1)),
        ("b.s0", m.RoundOpenedMessage(round=1)),
    ]
    assert run.samples == 24


def test_only_last_stages_count_samples():
    run = control()
    message = m.Updated(update=7, staleness=(0,), losses=(), lr=0.1)
    assert run.handle("a.s0", message) == []
    assert run.samples == 0


def test_a_round_is_committed_to_every_stage_when_all_rings_have_finished_everywhere():
    run = control()
    updated(run, "a", 0)
    updated(run, "b", 0)
    snapshots(run, 1, a=2, b=1)
    for sender, ring in [("a.s0", 0), ("b.s0", 0), ("a.s1", 1)]:
        assert run.handle(sender, m.RingFinishedMessage(round=1, ring=ring, epoch=0)) == []
    out = run.handle("b.s0", m.RingFinishedMessage(round=1, ring=1, epoch=0))
    assert of(out, ins.RecordRoundCommitted) == [ins.RecordRoundCommitted(1, 24)]
    assert of(out, ins.BeginCheckpoint) == [ins.BeginCheckpoint(1, 36, {"a": 2, "b": 1})]
    assert told(out, m.RoundCommittedMessage) == [
        (stage, m.RoundCommittedMessage(round=1, save=True)) for stage in STAGES
    ]
    assert out.index(of(out, ins.BeginCheckpoint)[0]) < len(out) - len(STAGES)  # before any stage can send its state


def test_checkpoints_are_evaluate_every_samples_apart_and_one_at_a_time():
    run = control(evaluate_every=60)
    saves = {}
    for update in range(7):
        updated(run, "a", update)
        updated(run, "b", update)
        round_ = update + 1
        saves[round_] = bool(of(ring_finished(run, round_), ins.BeginCheckpoint))
        if round_ == 5:
            assert run.saving
            assert of(state_sent(run, 1), ins.CommitCheckpoint) == [ins.CommitCheckpoint(1)]
    assert saves == {1: True, 2: False, 3: False, 4: False, 5: False, 6: True, 7: False}


def test_the_last_round_is_saved_even_while_an_earlier_checkpoint_is_on_its_way():
    run = control()
    updated(run, "a", 0)
    updated(run, "b", 0)
    ring_finished(run, 1)
    run.stop(evaluate=False)
    drained(run, "a", 1)
    drained(run, "b", 1)
    out = ring_finished(run, 2)
    assert told(out, m.RoundCommittedMessage)[0][1] == m.RoundCommittedMessage(round=2, save=True)
    assert rounds_finished(run, 2) == []  # two checkpoints are still to come
    assert of(state_sent(run, 1), ins.CommitCheckpoint) == [ins.CommitCheckpoint(1)]
    assert run.phase is ins.RunPhase.FINISHING
    out = state_sent(run, 2)
    assert of(out, ins.CommitCheckpoint) == [ins.CommitCheckpoint(2)]
    assert told(out, m.Stop) == [(stage, m.Stop()) for stage in STAGES]


def test_it_stops_by_samples_and_every_first_stage_drains():
    run = control(stop_samples=24)
    updated(run, "a", 0)
    out = updated(run, "b", 0)
    assert told(out, m.Drain) == [("a.s0", m.Drain()), ("b.s0", m.Drain())]
    assert run.phase is ins.RunPhase.DRAINING


def test_it_stops_by_time_once():
    run = control(stop_s=60.0)
    assert run.tick(59.9) == []
    assert told(run.tick(60.0), m.Drain)
    assert run.tick(61.0) == []


def test_to_stop_twice_drains_once_and_the_second_may_waive_the_evaluation():
    run = control()
    updated(run, "a", 0)
    assert run.stop(evaluate=True)
    assert run.stop(evaluate=False) == []
    drained(run, "a", 1)
    drained(run, "b", 0)
    ring_finished(run, 1)
    state_sent(run, 1)
    assert told(rounds_finished(run, 1), m.Stop)
    assert run.phase is ins.RunPhase.DONE


def test_a_wish_to_stop_without_evaluating_is_not_undone_by_the_run_s_own_end():
    run = control(stop_s=60.0)
    updated(run, "a", 0)
    run.stop(evaluate=False)
    run.tick(60.0)
    drained(run, "a", 1)
    drained(run, "b", 0)
    ring_finished(run, 1)
    state_sent(run, 1)
    rounds_finished(run, 1)
    assert run.phase is ins.RunPhase.DONE


def test_a_drained_cluster_contributes_at_once_to_the_rounds_that_are_open():
    """Otherwise `b`, at its lag limit, waits for a merge that waits for a stamp that nobody in `a` will send."""
    run = control()
    updated(run, "a", 0)
    updated(run, "b", 0)  # opens round 1
    run.stop(evaluate=True)
    out = drained(run, "a", 1)
    order = m.FinishRounds(up_to=1, updates=1, final=False)
    assert told(out, m.FinishRounds) == [("a.s0", order), ("a.s1", order)]
    assert run.phase is ins.RunPhase.DRAINING


def test_a_round_that_opens_after_a_cluster_has_drained_reaches_it_as_one_to_finish():
    run = control()
    updated(run, "a", 0)
    run.stop(evaluate=True)
    drained(run, "a", 1)
    out = updated(run, "b", 0)
    order = m.FinishRounds(up_to=1, updates=1, final=False)
    assert told(out, m.FinishRounds) == [("a.s0", order), ("a.s1", order)]
    assert told(out, m.RoundOpenedMessage) == [("b.s0", m.RoundOpenedMessage(round=1))]


def test_when_all_have_drained_one_final_round_opens():
    run = control()
    updated(run, "a", 0)
    updated(run, "b", 0)
    run.stop(evaluate=True)
    drained(run, "a", 1)
    out = drained(run, "b", 1)
    final = [(stage, m.FinishRounds(up_to=2, updates=1, final=True)) for stage in STAGES]
    assert [each for each in told(out, m.FinishRounds) if each[1].final] == final
    assert run.phase is ins.RunPhase.FINISHING
    assert rounds_finished(run, 1) == []  # of an earlier order
    assert run.phase is ins.RunPhase.FINISHING


def test_a_run_that_trained_nothing_ends_without_a_round():
    run = control()
    run.stop(evaluate=False)
    drained(run, "a", 0)
    out = drained(run, "b", 0)
    assert told(out, m.FinishRounds)[-1] == ("b.s0", m.FinishRounds(up_to=0, updates=0, final=True))
    assert told(rounds_finished(run, 0), m.Stop)


def test_the_run_ends_with_the_evaluation_of_the_anchor():
    run = control()
    out = to_the_last_evaluation(run)
    assert told(out, m.Evaluate) == [("a.s0", m.Evaluate(evaluation=1, batches=5))]
    evaluated = m.EvaluationFinished(evaluation=1, loss=(2.0, 4), metrics=())
    out = run.handle("a.s1", evaluated)
    assert of(out, ins.RecordEvaluation) == [ins.RecordEvaluation(12, evaluated, final=True)]
    assert told(out, m.Stop) == [(stage, m.Stop()) for stage in STAGES]
    assert run.phase is ins.RunPhase.DONE


def test_without_a_held_out_batch_nothing_is_evaluated():
    run = control(held_out_batches=0, evaluate_every=12)
    out = to_the_last_evaluation(run)
    assert not told(out, m.Evaluate)
    assert run.phase is ins.RunPhase.DONE


def test_evaluations_during_training_are_never_two_at_a_time():
    run = control(evaluate_every=12)
    assert told(updated(run, "a", 0), m.Evaluate) == [("a.s0", m.Evaluate(evaluation=1, batches=5))]
    assert not told(updated(run, "a", 1), m.Evaluate)
    (done,) = run.handle("a.s1", m.EvaluationFinished(evaluation=1, loss=(2.0, 4), metrics=()))
    assert not done.final
    assert told(updated(run, "a", 2), m.Evaluate) == [("a.s0", m.Evaluate(evaluation=2, batches=5))]


def test_an_evaluation_that_was_under_way_at_the_drain_is_awaited_and_is_not_the_final_one():
    run = control(evaluate_every=12)
    out = to_the_last_evaluation(run)  # the update before the stop asked for evaluation 1
    assert not told(out, m.Evaluate)
    assert run.phase is ins.RunPhase.FINISHING
    out = run.handle("a.s1", m.EvaluationFinished(evaluation=1, loss=(2.0, 4), metrics=()))
    assert not of(out, ins.RecordEvaluation)[0].final
    assert told(out, m.Evaluate) == [("a.s0", m.Evaluate(evaluation=2, batches=5))]
    assert run.phase is ins.RunPhase.EVALUATING
    out = run.handle("a.s1", m.EvaluationFinished(evaluation=2, loss=(1.0, 4), metrics=()))
    assert of(out, ins.RecordEvaluation)[0].final


def test_a_leap_over_several_thresholds_asks_for_one_evaluation():
    run = control(evaluate_every=12)
    assert len(told(updated(run, "a", 9), m.Evaluate)) == 1
    run.handle("a.s1", m.EvaluationFinished(evaluation=1, loss=(2.0, 4), metrics=()))
    assert len(told(updated(run, "a", 10), m.Evaluate)) == 1


def test_a_resumed_run_counts_on():
    run = control(start_samples=120, start_updates={"a": 6, "b": 4}, stop_samples=144)
    assert run.samples == 120
    assert run.accounts.session_samples == 0
    updated(run, "a", 6)
    assert run.samples == 132
    assert run.phase is ins.RunPhase.TRAINING
    out = updated(run, "b", 4)
    assert told(out, m.RoundOpenedMessage) == [
        ("a.s1", m.RoundOpenedMessage(round=1)),
        ("b.s0", m.RoundOpenedMessage(round=1)),
    ]
    assert told(out, m.Drain)
    assert run.updates == {"a": 7, "b": 5}


def contradictions():
    draining = control()
    updated(draining, "a", 0)
    draining.stop(evaluate=True)
    drained(draining, "a", 1)
    evaluating = control()
    to_the_last_evaluation(evaluating)
    return {
        "a ring of another": (control(), "a.s0", m.RingFinishedMessage(round=1, ring=1, epoch=0)),
        "a round that is not open": (control(), "a.s0", m.RingFinishedMessage(round=1, ring=0, epoch=0)),
        "drained unasked": (control(), "a.s0", m.Drained(micro_batches=3, updates=1)),
        "drained twice": (draining, "a.s0", m.Drained(micro_batches=3, updates=1)),
        "drained, but no first stage": (draining, "a.s1", m.Drained(micro_batches=3, updates=1)),
        "rounds finished before the drain": (draining, "b.s0", m.RoundsFinished(up_to=0)),
        "rounds finished that never opened": (draining, "a.s0", m.RoundsFinished(up_to=4)),
        "state unasked": (control(), "a.s0", sm.StateSent(round=1, pieces=0)),
        "an evaluation unasked": (control(), "a.s1", m.EvaluationFinished(evaluation=1, loss=(1.0, 1), metrics=())),
        "another evaluation": (evaluating, "a.s1", m.EvaluationFinished(evaluation=9, loss=(1.0, 1), metrics=())),
        "an evaluation of another": (evaluating, "b.s0", m.EvaluationFinished(evaluation=1, loss=(1.0, 1), metrics=())),
    }


@pytest.mark.parametrize("name", contradictions())
def test_what_contradicts_the_run_ends_it_and_names_the_sender(name):
    run, sender, message = contradictions()[name]
    with pytest.raises(RunFailed, match=sender):
        run.handle(sender, message)


@pytest.mark.parametrize(("round_", "ring"), [(1, 1), (1, 0), (10**9, 0), (1, 10**9)])
def test_a_report_of_a_ring_or_round_that_is_none_of_the_sender_s_costs_its_cluster(round_, ring):
    owner = RoundOwner(RINGS, average_every=24, on_loss="reform", clusters={"a.s0": "a", "a.s1": "a", "b.s0": "b"})
    run = c.RunControl(replace(SHAPE, stands_by=True), owner)
    out = run.handle("a.s0", m.RingFinishedMessage(round=round_, ring=ring, epoch=0))
    (lost,) = of(out, ins.RecordClusterLost)
    assert lost.reason.startswith("a.s0 contradicts the state of the run: it reported")
    assert (lost.cluster, lost.left, lost.standing_by) == ("a", ("b",), ())
    assert [order.epoch for order in of(out, ins.ReformRings)] == [1]


def test_a_cluster_may_rest_while_it_waits_for_a_round_has_drained_or_follows():
    run = control()
    for last, update in (("a", 0), ("b", 0)):
        updated(run, last, update)
    assert run.rounds.opened == 1
    assert run.resting == frozenset()
    run.handle("a.s0", m.ContributionFinishedMessage(round=1, update=1))
    assert run.resting == frozenset(), "the others wait for a.s1"
    run.handle("a.s1", m.ContributionFinishedMessage(round=1, update=1))
    assert run.resting == {"a"}
    ring_finished(run, 1)
    assert run.resting == frozenset()
    run.stop(evaluate=True)
    drained(run, "b", 1)
    assert run.resting == {"b"}


def test_a_drained_report_that_overtakes_an_update_still_counts():
    """They come from two stages, the first and the last, over connections of their own."""
    run = control()
    told_to_stop = run.stop(evaluate=True)
    assert told(told_to_stop, m.Drain)
    run.handle("a.s0", m.Drained(micro_batches=3, updates=1))
    out = run.handle("b.s0", m.Drained(micro_batches=0, updates=0))
    assert run.samples == 12
    last = {message.up_to for _, message in told(out, m.FinishRounds) if message.final}
    assert last == {1}  # a last round, which saves what was made
    updated(run, "a", 0)
    assert run.samples == 12


def test_an_order_to_stop_that_comes_after_the_end_of_training_cuts_nothing_off():
    run = control(held_out_batches=0)
    run.stop(evaluate=True)
    assert not run.stopped_early
    early = control()
    early.stop(evaluate=False)
    assert early.stopped_early


def test_every_round_is_marked_when_it_opens_and_the_last_one_as_such():
    run = control()
    updated(run, "a", 0)
    assert of(updated(run, "b", 0), ins.RecordRoundOpened) == [ins.RecordRoundOpened(1, final=False)]
    ring_finished(run, 1)
    run.stop(evaluate=True)
    out = drained(run, "a", 1) + drained(run, "b", 1)
    assert of(out, ins.RecordRoundOpened) == [ins.RecordRoundOpened(2, final=True)]


def test_a_checkpoint_that_a_user_asks_for_opens_a_round_and_saves_it():
    run = control()
    updated(run, "a", 0)
    first = run.ask("checkpoint")
    assert [each.round for each in of(first, ins.RecordRoundOpened)] == [1]
    assert run.ask("checkpoint") == [], "a round is under way"
    assert of(ring_finished(run, 1), ins.BeginCheckpoint)
    state_sent(run, 1)
    run.stop(evaluate=True)
    assert run.ask("checkpoint") == [], "the run saves as it ends"


def test_an_evaluation_that_a_user_asks_for_begins_with_the_next_update():
    run = control()
    assert run.ask("evaluate") == []
    assert [peer for peer, _ in told(updated(run, "b", 0), m.Evaluate)] == ["a.s0"]
    assert told(updated(run, "b", 1), m.Evaluate) == []
