"""Whatever the delays, speeds, rounds and the moment of the drain: the bounds hold and the end is reached."""

from typing import Any

from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from cluster_planner import Schedule, held_micro_batches
from ravnest.pipeline import StageMachine
from ravnest.pipeline import events as ev
from ravnest.pipeline import instructions as ins
from tests.unit.ravnest.pipeline.harness import Fleet, Scenario


def _scenario(schedule: Schedule, max_staleness: int, **rest: Any) -> Scenario:
    return Scenario(schedule=schedule, max_staleness=max_staleness if schedule == "async" else 0, **rest)


SCENARIOS = st.builds(
    _scenario,
    schedule=st.sampled_from(["async", "async", "1f1b", "gpipe"]),
    stages=st.lists(st.integers(1, 5), min_size=1, max_size=3).map(tuple),
    update_every=st.integers(1, 5),
    max_staleness=st.integers(0, 3),
    window=st.integers(1, 20),
    max_lag=st.integers(1, 3),
    clip=st.booleans(),
    rounds=st.integers(0, 12),
    evaluations=st.integers(0, 3),
    seed=st.integers(0, 2**32),
    drain_at_s=st.sampled_from([0.0, 1.0, 15.0, 40.0, 150.0]),
    spare_room=st.sampled_from([0, 2, 5]),
)
BACKWARDS = (ins.RunBackward, ins.RunInputGradients)
RELAXED = settings(deadline=None, suppress_health_check=[HealthCheck.too_slow], derandomize=True)


@settings(RELAXED, max_examples=150)
@given(SCENARIOS)
def test_any_order_of_events_ends_well(scenario: Scenario) -> None:
    fleet = Fleet(scenario).run()
    clusters = range(len(scenario.stages))
    assert set(fleet.drained) == set(clusters)
    # Every stage has merged every round, and reported the last.
    assert fleet.committed == fleet.opened == scenario.rounds + 1
    assert fleet.finished == dict.fromkeys(fleet.machines, fleet.opened)
    for (cluster, stage), machine in fleet.machines.items():
        trace = fleet.trace[cluster, stage]
        done = fleet.drained[cluster]
        assert machine.running is None
        assert machine.in_flight == 0
        assert (machine.contributed, machine.merged) == (fleet.opened, fleet.opened)
        assert machine.version == done.updates
        assert done.micro_batches == done.updates * scenario.update_every
        # Each micro-batch once forward and once backward, each update once, all in order.
        every = list(range(done.micro_batches))
        assert [i.micro_batch for i in trace if isinstance(i, ins.RunForward)] == every
        assert [i.micro_batch for i in trace if isinstance(i, BACKWARDS)] == every
        assert [i.micro_batch for i in trace if isinstance(i, ins.RunBackward | ins.RunWeightGradients)] == every
        assert [i.update for i in trace if isinstance(i, ins.RunUpdate)] == list(range(done.updates))
        assert [i.round for i in trace if isinstance(i, ins.TakeSnapshot)] == list(range(1, fleet.opened + 1))
        assert [i.round for i in trace if isinstance(i, ins.ApplyMerge)] == list(range(1, fleet.opened + 1))
        assert sum(machine.staleness.values()) == done.micro_batches
        assert max(machine.staleness, default=0) <= scenario.max_staleness


@settings(RELAXED, max_examples=60)
@given(SCENARIOS)
def test_staleness_lag_and_snapshots_counted_from_outside(scenario: Scenario) -> None:
    fleet = Fleet(scenario).run()
    assert fleet.largest_staleness <= scenario.max_staleness
    # All stages of a cluster take a round's snapshot after the same update.
    assert all(len(versions) == 1 for versions in fleet.snapshot_version.values())
    assert len(fleet.snapshot_version) == len(scenario.stages) * fleet.opened
    for trace in fleet.trace.values():
        pending = 0
        for at, instruction in enumerate(trace):
            pending += isinstance(instruction, ins.TakeSnapshot)
            pending -= isinstance(instruction, ins.ApplyMerge)
            assert pending <= scenario.max_lag, trace[: at + 1]


@settings(RELAXED, max_examples=60)
@given(SCENARIOS.filter(lambda s: s.schedule != "async"))
def test_a_synchronous_schedule_has_one_order_whatever_the_delays(scenario: Scenario) -> None:
    fleet = Fleet(scenario).run()
    for (cluster, stage), trace in fleet.trace.items():
        limit = held_micro_batches(scenario.schedule, scenario.stages[cluster], stage, scenario.update_every)
        of_one_update = [("F", i) for i in range(limit)]
        for i in range(scenario.update_every):
            of_one_update += [("B", i)] + ([("F", i + limit)] if i + limit < scenario.update_every else [])
        passes = [i for i in trace if isinstance(i, (ins.RunForward, *BACKWARDS))]
        expected = [
            (kind, update * scenario.update_every + i)
            for update in range(fleet.drained[cluster].updates)
            for kind, i in of_one_update
        ]
        assert [("F" if isinstance(i, ins.RunForward) else "B", i.micro_batch) for i in passes] == expected


@settings(RELAXED, max_examples=60)
@given(SCENARIOS)
def test_snapshots_and_merges_come_between_groups(scenario: Scenario) -> None:
    fleet = Fleet(scenario).run()
    for trace in fleet.trace.values():
        accumulated = 0
        since_update: list[ins.Instruction] = []
        for instruction in trace:
            if isinstance(instruction, ins.RunBackward | ins.RunWeightGradients):
                accumulated += 1
            elif isinstance(instruction, ins.RunUpdate):
                assert accumulated == scenario.update_every
                accumulated = 0
                since_update = []
            elif isinstance(instruction, ins.TakeSnapshot | ins.ApplyMerge):
                assert accumulated == 0
                if isinstance(instruction, ins.TakeSnapshot):
                    assert not any(isinstance(i, (ins.RunForward, *BACKWARDS)) for i in since_update)
            since_update.append(instruction)


@settings(RELAXED, max_examples=60)
@given(SCENARIOS.filter(lambda s: s.clip))
def test_clipping_uses_the_sum_of_one_update_over_all_stages(scenario: Scenario) -> None:
    fleet = Fleet(scenario).run()
    for (cluster, stage), trace in fleet.trace.items():
        totals = [
            sum(Fleet.norm_sq((cluster, i), update) for i in range(scenario.stages[cluster]))
            for update in range(fleet.drained[cluster].updates)
        ]
        for instruction in trace:
            if isinstance(instruction, ins.RunUpdate):
                if scenario.max_staleness == 0 or stage == 0:
                    assert instruction.norm_sq == totals[instruction.update]
                else:
                    assert instruction.norm_sq in [None, *totals[: instruction.update + 1]]


@settings(RELAXED, max_examples=60)
@given(SCENARIOS)
def test_evaluations_pass_every_stage_once_in_order(scenario: Scenario) -> None:
    fleet = Fleet(scenario).run()
    for cluster, stages in enumerate(scenario.stages):
        runs = [
            [(i.evaluation, i.batch) for i in fleet.trace[cluster, stage] if isinstance(i, ins.RunEvaluation)]
            for stage in range(stages)
        ]
        assert all(run == runs[0] == sorted(set(run)) for run in runs)
        assert fleet.evaluations_reported[cluster] == sorted({evaluation for evaluation, _ in runs[0]})
        assert len(fleet.evaluations_reported[cluster]) == scenario.evaluations


@settings(RELAXED, max_examples=60)
@given(SCENARIOS.filter(lambda s: s.spare_room > 0 and max(s.stages) > 1))
def test_a_split_backward_sends_at_once_and_keeps_within_its_room(scenario: Scenario) -> None:
    fleet = Fleet(scenario).run()
    for trace in fleet.trace.values():
        in_flight = pending = 0
        for at, instruction in enumerate(trace):
            match instruction:
                case ins.RunForward():
                    in_flight += 1
                case ins.RunBackward():
                    in_flight -= 1
                    assert not pending, "a whole backward overtakes no weight gradients"
                case ins.RunInputGradients(m):
                    in_flight, pending = in_flight - 1, pending + 1
                    after = iter(trace[at + 1 :])
                    sent = next(i for i in after if isinstance(i, ins.SendGradient | ins.Compute))
                    assert isinstance(sent, ins.SendGradient), "it is sent before anything else is computed"
                    assert sent.micro_batch == m
                    assert not (scenario.clip and (m + 1) % scenario.update_every == 0)
                case ins.RunWeightGradients():
                    pending -= 1
            assert not pending or in_flight + 2 * pending <= scenario.room, trace[: at + 1]


IDEMPOTENT = (ev.DrainRequested, ev.WindowChanged, ev.RoundsToFinish, ev.SplitChanged)


@settings(RELAXED, max_examples=15)
@given(SCENARIOS)
def test_no_event_may_come_twice(scenario: Scenario) -> None:
    def repeat(machine: StageMachine, event: ev.Event) -> None:
        again = machine.handle(event, 0.0)
        if isinstance(event, IDEMPOTENT):
            assert again == []
        else:
            assert [type(instruction) for instruction in again] == [ins.Fail], event
            assert machine.handle(event, 0.0) == [], "a failed machine says no more"

    fleet = Fleet(scenario, probe=repeat).run()
    assert fleet.drained
