from types import SimpleNamespace

import pytest

from ravnest.driver import instructions as ins
from ravnest.driver.observe import report
from ravnest.driver.observe.metrics_file import MetricsWriter, read_metrics
from ravnest.driver.observe.record import RunRecord
from ravnest.recovery import Replaced, TryFailed
from ravnest.stage import messages as m
from tests.support.local import setups_of, tiny_job


class Watched:
    """A record of two clusters, an update of 12 samples, and what it told."""

    def __init__(self, path, **changes):
        self.events = []
        self.path = path
        self.samples_before = 0
        self.unmade = {}
        self.writer = MetricsWriter(path / "metrics.jsonl")
        self.record = RunRecord(
            path,
            SimpleNamespace(on=self.events.append),
            self.writer,
            stages=["a.s0", "a.s1", "b.s0"],
            last_stages={"a.s1": "a", "b.s0": "b"},
            samples_per_update=12,
            total_samples=240,
            metrics=[SimpleNamespace(name="accuracy", finish=lambda mean: mean)],
            **changes,
        )

    def tick(self, elapsed_s, phase=ins.RunPhase.TRAINING, **updates):
        samples = 12 * sum(updates.values())
        accounts = SimpleNamespace(session_samples=samples - self.samples_before, unmade=self.unmade)
        state = SimpleNamespace(phase=phase, updates=updates, samples=samples, accounts=accounts)
        self.record.tick(state, elapsed_s)

    def progress(self):
        return [event for event in self.events if isinstance(event, report.ProgressEvent)]

    def lines(self, kind):
        self.writer.close()
        return [line for line in read_metrics(self.path / "metrics.jsonl") if line["kind"] == kind]


@pytest.fixture
def watched(tmp_path):
    made = Watched(tmp_path)
    yield made
    made.writer.close()


def update(number, staleness=(0,), losses=()):
    return m.Updated(update=number, staleness=staleness, losses=losses, lr=0.1)


def test_each_stage_says_what_memory_it_starts_with(watched):
    watched.record.started("a.s1", m.StageStarted(process_bytes=123))
    (line,) = watched.lines("stage")
    assert (line["cluster"], line["stage"], line["process_bytes"]) == ("a", 1, 123)


def test_metrics_that_cannot_be_written_are_told_once_and_so_is_that_they_can_be_again(watched, monkeypatch):
    lost = iter([(0, None), (3, "No space left on device"), (2, "No space left on device"), (0, None), (0, None)])
    monkeypatch.setattr(watched.writer, "take_lost", lambda: next(lost))
    told = []
    for second in range(5):
        before = len(watched.events)
        watched.tick(float(second), a=second, b=second)
        told.append([event.text for event in watched.events[before:] if isinstance(event, report.NoticeEvent)])
    assert [len(each) for each in told] == [0, 1, 0, 1, 0]
    assert "metrics.jsonl cannot be written (No space left on device)" in told[1][0]
    assert "training goes on" in told[1][0]
    assert "5 lines were lost" in told[3][0]


def test_a_log_that_cannot_be_written_hides_no_error(watched):
    assert watched.record.write_log("a.s0", "Traceback").startswith("details in ")
    (watched.path / "logs" / "b.s0.log").mkdir()
    assert "b.s0.log cannot be written: Is a directory" in watched.record.write_log("b.s0", "Traceback")


def test_progress_comes_once_a_second_with_the_rates_so_far(watched):
    watched.tick(0.0, a=0, b=0)
    watched.tick(0.5, a=1, b=0)
    watched.tick(2.0, a=4, b=1)
    watched.tick(4.0, a=5, b=1)
    first, second = watched.progress()  # at 0.0 there are no rates yet
    assert [one.samples_per_s for one in first.clusters] == [24.0, 6.0]
    assert [one.samples_per_s for one in second.clusters] == [15.0, 6.0]
    assert second.samples == 72


def test_the_rate_of_slow_training_is_steady_between_its_updates(watched):
    """An update of 12 samples every 40 s, seen every second, is 0.3 samples/s at each of them."""
    for second in range(0, 400):
        watched.tick(float(second), a=second // 40, b=0)
    rates = [one.clusters[0].samples_per_s for one in watched.progress() if one.elapsed_s >= 40]
    assert rates == pytest.approx([0.3] * len(rates))


def test_a_rate_follows_what_happens_now_and_falls_where_nothing_does(watched):
    for second in range(0, 101):
        watched.tick(float(second), a=min(second, 60), b=0)
    rates = {one.elapsed_s: one.clusters[0].samples_per_s for one in watched.progress()}
    assert rates[60.0] == pytest.approx(12.0)
    assert rates[61.0] == pytest.approx(12.0)  # the next update is not late yet
    assert rates[62.0] > rates[70.0] > rates[100.0] > 0
    assert rates[100.0] < 6.0


def test_progress_says_where_this_run_ends(tmp_path):
    made = Watched(tmp_path, stop_s=180.0)
    made.tick(0.0, a=0, b=0)
    made.tick(1.0, a=1, b=0)
    (progress,) = made.progress()
    assert (progress.total_samples, progress.stop_s) == (240, 180.0)


def test_a_resumed_run_does_not_report_what_was_made_before_as_its_rate(watched):
    watched.samples_before = 18_000
    watched.tick(0.1, a=1000, b=500)
    watched.tick(1.1, a=1001, b=500)
    (progress,) = watched.progress()
    assert (progress.samples, progress.session_samples) == (18_012, 12)
    assert progress.clusters[0].samples_per_s == pytest.approx(12.0)
    assert progress.clusters[0].samples == 12_012


def test_a_cluster_that_came_during_the_run_has_the_samples_and_updates_that_it_made(watched):
    watched.unmade = {"b": 100}
    watched.tick(0.0, a=300, b=100)
    watched.tick(1.0, a=301, b=102)
    (progress,) = watched.progress()
    assert [(one.samples, one.updates) for one in progress.clusters] == [(3612, 301), (24, 2)]


def test_the_loss_is_the_mean_since_the_last_event_and_none_without_any(watched):
    watched.tick(0.0, a=0, b=0)
    watched.record.updated("a.s1", update(0, losses=(3.0, 1.0)))
    watched.tick(1.0, a=1, b=0)
    watched.record.updated("a.s1", update(1, losses=(1.0, 1.0)))
    watched.tick(2.0, a=2, b=0)
    first, second = watched.progress()
    assert [one.loss for one in first.clusters] == [2.0, None]
    assert [one.loss for one in second.clusters] == [1.0, None]


def test_staleness_is_counted_over_all_stages(watched):
    watched.record.updated("a.s0", update(0, staleness=(1, 1, 2)))
    watched.record.updated("a.s1", update(0, staleness=(0, 0, 0), losses=(1.0,)))
    watched.record.updated("b.s0", update(0, staleness=(0,), losses=(1.0,)))
    watched.tick(0.0, a=1, b=1)
    watched.tick(1.0, a=1, b=1)
    assert [one.max_staleness for one in watched.progress()[0].clusters] == [2, 0]
    assert (watched.record.staleness_max, watched.record.staleness_sum, watched.record.staleness_count) == (2, 4, 7)


def test_an_update_is_a_line_and_a_last_stage_s_has_the_loss(watched):
    watched.record.updated("a.s0", update(4, staleness=(1,)))
    watched.record.updated("a.s1", update(4, losses=(1.0, 3.0)))
    first, last = watched.lines("update")
    assert (first["cluster"], first["stage"], first["update"], "loss" in first) == ("a", 0, 4, False)
    assert (last["stage"], last["loss"], last["samples"]) == (1, 2.0, 60)


def test_rounds_merged_are_those_of_the_last_stage(watched):
    watched.record.merged("a.s0", m.RoundMerged(round=5))
    watched.record.merged("a.s1", m.RoundMerged(round=4))
    watched.tick(0.0, a=1, b=1)
    watched.tick(1.0, a=1, b=1)
    assert [one.rounds_merged for one in watched.progress()[0].clusters] == [4, 0]


def test_an_evaluation_is_told_as_means(watched):
    evaluated = m.EvaluationFinished(evaluation=1, loss=(6.0, 4), metrics=((3.0, 4),))
    watched.record.evaluated(ins.RecordEvaluation(48, evaluated, final=True))
    assert watched.record.evaluations == [report.EvaluatedEvent(48, 1.5, {"accuracy": 0.75}, True)]
    assert watched.lines("evaluated")[0]["metrics"] == {"accuracy": 0.75}


def test_the_last_progress_is_told_once_however_early_it_comes(watched):
    watched.tick(0.0, a=0, b=0)
    watched.tick(1.0, a=1, b=1)
    watched.tick(1.2, phase=ins.RunPhase.DONE, a=2, b=1)
    watched.tick(5.0, phase=ins.RunPhase.DONE, a=2, b=1)
    assert [one.samples for one in watched.progress()] == [24, 36]
    assert watched.record.training_s == 5.0


def test_rounds_count_on_over_a_resume(tmp_path):
    made = Watched(tmp_path, rounds_before=7)
    made.tick(0.0, a=0, b=0)
    made.tick(1.0, a=0, b=0)
    assert [one.rounds_merged for one in made.progress()[0].clusters] == [7, 7]
    made.record.round_committed(ins.RecordRoundCommitted(2, 96))
    made.record.checkpoint(tmp_path / "checkpoint-000004", 2)
    made.record.merged("a.s1", m.RoundMerged(round=2))
    made.tick(2.0, a=1, b=1)
    assert [made.lines("round")[0]["round"], made.lines("checkpoint")[0]["round"]] == [9, 9]
    assert [one.rounds_merged for one in made.progress()[1].clusters] == [9, 7]


def test_where_the_time_went_is_told_with_the_progress_and_ends_steady_at_the_drain(watched):
    for number, forward_s in enumerate((1.0, 2.0, 4.0)):
        spent = {"forward": forward_s, "input": 1.0}
        watched.record.updated("a.s0", m.Updated(update=number, staleness=(0,), losses=(), lr=0.1, spent=spent))
        watched.tick(float(number), a=number, b=0)
    watched.record.phase(ins.RunPhase.DRAINING)
    watched.record.reported("a.s0", m.RoundsFinished(up_to=1, spent={"forward": 4.0, "input": 1.0, "drain": 5.0}))
    assert watched.record.times.steady("a.s0").compute == 1.0
    assert watched.record.times.overall("a.s0").compute == 0.4
    lines = watched.lines("time")
    assert [line["stages"]["a.s0"]["compute"] for line in lines] == [0.5, 1.0, 1.0]


def test_what_a_stages_tensors_take_is_written_and_remembered(watched):
    watched.record.held("b.s0", m.MemoryPeaks(tensor_bytes={"weights": 5}))
    watched.record.held("b.s0", m.MemoryPeaks(tensor_bytes={"weights": 7, "gradients": 3}))
    assert watched.record.tensor_bytes == {"b.s0": {"weights": 7, "gradients": 3}}
    assert [line["tensor_bytes"] for line in watched.lines("memory")][-1] == {"weights": 7, "gradients": 3}


def test_a_timeline_that_is_not_whole_says_so(watched):
    assert not watched.record.drawn
    watched.record.timeline(0)
    assert watched.record.drawn
    assert watched.events == []
    watched.record.timeline(1234)
    assert "1,234 spans" in watched.events[0].text


def test_a_window_that_was_tuned_is_written_down(watched):
    watched.record.window_tuned("a.s0", m.WindowTuned(window=9, round_trip_s=0.5, pace_s=0.07))
    (line,) = watched.lines("window")
    assert {key: line[key] for key in ("cluster", "window", "round_trip_s", "pace_s")} == {
        "cluster": "a",
        "window": 9,
        "round_trip_s": 0.5,
        "pace_s": 0.07,
    }
    assert watched.record.windows == {"a": 9}
    assert watched.record.largest_windows == {"a": 9}


def test_a_round_takes_from_its_opening_to_its_commit_and_the_last_one_does_not_count(watched):
    record = watched.record
    for round_, opened_s, committed_s, final in ((1, 1.0, 3.0, False), (2, 4.0, 5.0, False), (3, 6.0, 20.0, True)):
        record.at(opened_s)
        record.round_opened(ins.RecordRoundOpened(round_, final))
        record.at(committed_s)
        record.round_committed(ins.RecordRoundCommitted(round_, 24 * round_))
    assert record.rounds_s == [2.0, 1.0]
    assert [line["seconds"] for line in watched.lines("round")] == [2.0, 1.0, 14.0]


def test_each_stages_gradients_are_counted_by_their_staleness(watched):
    watched.record.updated("a.s0", update(0, staleness=(0, 2)))
    watched.record.updated("a.s0", update(1, staleness=(2, 1)))
    watched.record.updated("b.s0", update(0, staleness=(0,), losses=(1.0,)))
    assert watched.record.staleness == {"a.s0": [1, 1, 2], "b.s0": [1]}


def test_what_becomes_of_a_lost_cluster_is_recorded_with_rounds_of_the_whole_run(tmp_path):
    watched = Watched(tmp_path, rounds_before=10)
    watched.record.replacement_failed(TryFailed("b", "it died", 4.0))
    _, plan = setups_of(tiny_job())
    watched.record.cluster_replaced(Replaced("b", {"b.s0": "desk"}, 7.5, 24), 3, plan)
    assert watched.record.plan is plan
    (failed,) = watched.lines("not_replaced")
    assert (failed["cluster"], failed["reason"], failed["again_s"]) == ("b", "it died", 4.0)
    (replaced,) = watched.lines("replaced")
    assert (replaced["nodes"], replaced["round"], replaced["seconds"], replaced["samples"]) == (
        {"b.s0": "desk"},
        13,
        7.5,
        24,
    )
    assert replaced["new"] is False
