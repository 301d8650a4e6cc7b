"""A stage that lies: whatever one field of a message says, the driver names it and loses its cluster, or goes on."""

import re

import pytest
from hypothesis import HealthCheck, given, settings

from ravnest.driver.observe.report import ClusterLostEvent
from ravnest.driver.ray.stage_actors import StageEnded
from ravnest.stage import epoch_messages as em
from ravnest.stage import messages as m
from ravnest.stage import state_messages as sm
from tests.support.wire import mutations
from tests.unit.ravnest.driver.test_loop import STAGES, Bench

LIAR = "c0.s1"
EXAMPLES = [
    m.Alive(finished=1, sent_s=1.0, echo_s=1.0, heard_s=1.0),
    m.StageStarted(process_bytes=1),
    m.Updated(update=0, staleness=(0,), losses=(1.0,), lr=0.1, spent={"forward": 1.0}),
    m.WindowTuned(window=2, round_trip_s=1.0, pace_s=1.0),
    m.BackwardSplit(splits=True, whole_s=1.0, input_s=1.0, weight_s=1.0, period_s=1.0),
    m.ContributionFinishedMessage(round=1, update=1),
    m.RingFinishedMessage(round=1, ring=0, epoch=0, hops={"c1.s0": 1e6}),
    em.RoundsHeld(epoch=1, holding=((0, 1),)),
    em.ContributionsSeen(
        round=1, ring=0, epoch=0, members={"c1.s0": (1.0, 0.5, 0.9, 8.0)}, digests={"c1.s0": ("00ff",)}
    ),
    m.RoundMerged(round=1),
    sm.StatePiece(round=1, file="segment-000.safetensors", offset=0, last=False),
    sm.StateSent(round=1, pieces=1),
    m.Drained(micro_batches=1, updates=1),
    m.RoundsFinished(up_to=1, spent={"forward": 1.0}),
    m.EvaluationFinished(evaluation=1, loss=(1.0, 1), metrics=((1.0, 1),)),
    m.Spans(lanes=(0,), kinds=("forward",), numbers=(0,), began_s=(0.0,), ended_s=(1.0,), dropped=0),
    m.MemoryPeaks(tensor_bytes={"weights": 1}),
    m.ImitationLateness(late_s=0.0, imitated_s=1.0, links_late_s=0.0, messages=1),
    m.LinksUsed(pipeline_bytes={"c0.s0": 1}, bulk_bytes={"c1.s0": 1}),
    m.StrangersRefused(connections={"127.0.0.1": 3}),
]


@pytest.fixture
def bench(tmp_path):
    made = Bench(tmp_path)
    made.start()
    yield made
    made.writer.close()


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    """Gives a run in which nobody is lost: the one before, where that holds of it."""
    made = []

    def give():
        if not made or LIAR not in made[-1].control.clusters.stages:
            made.append(Bench(tmp_path_factory.mktemp("run")))
            made[-1].start()
        return made[-1]

    yield give
    for each in made:
        each.writer.close()


@settings(max_examples=300, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(message=mutations(EXAMPLES))
def test_the_driver_loses_the_liar_and_names_it_or_goes_on(whole, message):
    bench = whole()
    bench.say(LIAR, message)
    bench.turn()
    for event in bench.events:
        if isinstance(event, ClusterLostEvent):
            assert (event.stage, event.left) == (LIAR, ("c1",))
            assert LIAR in event.reason
    for stage in STAGES:
        bench.heard(stage)


@pytest.mark.parametrize(
    ("message", "reason"),
    [
        (m.Updated(update=0, staleness=(2**53,), losses=(1.0,), lr=0.1), r"c0\.s1 sent.*staleness"),
        (m.Updated(update=0, staleness=(0,), losses=(), lr=0.1), r"c0\.s1 sent.*no micro-batch"),
        (m.Updated(update=0, staleness=(), losses=(1.0,), lr=0.1), r"c0\.s1 sent.*no micro-batch"),
        (m.EvaluationFinished(evaluation=1, loss=(1.0, 1), metrics=((1.0, 1),)), r"c0\.s1 sent.*0 metrics"),
        (m.ContributionFinishedMessage(round=10**9, update=1), r"c0\.s1 sent"),
    ],
)
def test_what_no_stage_sends_costs_the_cluster_of_the_one_that_is_named(bench, message, reason):
    bench.say(LIAR, message)
    bench.turn()
    (event,) = (event for event in bench.events if isinstance(event, ClusterLostEvent))
    assert re.match(reason, event.reason)
    assert bench.control.clusters.training == ["c1"]


def test_what_a_stage_of_a_lost_cluster_says_ends_nothing(tmp_path):
    bench = Bench(tmp_path)
    bench.start()
    bench.news.ends.append(StageEnded("c0.s0", None, "its process was killed"))
    bench.turn(after_s=1.0)
    assert LIAR not in bench.control.clusters.stages
    bench.say(LIAR, m.Updated(update=0, staleness=(2**53,), losses=(1.0,), lr=0.1))
    bench.turn()
    bench.writer.close()


def test_strangers_of_a_stage_are_told_to_the_user(bench):
    bench.events.clear()
    bench.say("c0.s0", m.StrangersRefused(connections={"192.0.2.7": 936}))
    bench.turn()
    texts = [event.text for event in bench.events if hasattr(event, "text")]
    assert any("c0.s0" in text and "936 connections from 192.0.2.7" in text for text in texts)
