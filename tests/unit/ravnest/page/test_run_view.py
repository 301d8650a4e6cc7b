"""The page's view of a run, made from records by hand."""

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from cluster_planner import Plan
from ravnest.driver.observe import report
from ravnest.driver.observe.place_events import NodeJoinedEvent
from ravnest.page.prometheus import metrics_text
from ravnest.page.run_curves import MOST_POINTS
from ravnest.page.run_view import MOST_EVENTS, MOST_LINKS, RunView


class Told:
    """A view, and the records that it is told."""

    def __init__(self, plan: Plan) -> None:
        self.view = RunView(plan, lambda event: f"words of {report.kind_of(event)}")

    def event(self, at_s: float, event: report.RunEvent) -> None:
        self.record(report.kind_of(event), at_s, **report.as_plain(event))

    def record(self, kind: str, at_s: float, **fields: object) -> None:
        self.view.take(json.loads(json.dumps({"kind": kind, "at_s": at_s, **fields})))

    def update(self, at_s: float, cluster: str, loss: float | None = None, update: int = 0) -> None:
        fields = {} if loss is None else {"loss": loss, "samples": 16 * (update + 1)}
        self.record("update", at_s, cluster=cluster, stage=1, update=update, lr=0.1, staleness=[0, 1], **fields)

    def document(
        self, state: str = "running", now_s: float | None = None, *, new: bool = False, **outcome: object
    ) -> Any:
        now_s = self.view.at_s if now_s is None else now_s
        return self.view.document(state=state, now_s=now_s, name="r", outcome=outcome, new=new)

    def cluster(self, name: str, **how: Any) -> Any:
        return next(each for each in self.document(**how)["clusters"] if each["cluster"] == name)


@pytest.fixture
def told(plan: Plan) -> Told:
    made = Told(plan)
    made.event(0.0, report.PhaseEvent("training"))
    return made


def test_before_anything_has_happened_the_plan_is_shown(plan: Plan) -> None:
    document = Told(plan).document()
    assert (document["progress"], document["rounds"], document["checkpoint"], document["events"]) == (None,) * 3 + ([],)
    assert [each["state"] for each in document["clusters"][0]["stages"]] == ["starts", "starts"]
    assert document["predicted"]["samples_per_s"] == 160.0


def test_a_run_that_is_started_trains_nothing_and_says_so_until_its_stages_train(told: Told, plan: Plan) -> None:
    def said(of: Told, **how: Any) -> tuple[object, ...]:
        document = of.document(**how)
        trains = [line for line in metrics_text(document).splitlines() if line.startswith("ravnest_cluster_trains{")]
        return document["run"]["phase"], {each["state"] for each in document["clusters"]}, {one[-1] for one in trains}

    new, starting, training = Told(plan), ("starting", {"starts"}, {"0"}), ("training", {"trains"}, {"1"})
    assert said(new) == starting
    new.record("baselines", 0.0, losses={"guessing": 4.2})
    assert said(new) == starting
    new.event(0.0, report.PhaseEvent("training"))
    assert said(new) == training
    told.event(9.0, report.ClusterLostEvent("c0", "c0.s1", "laptop", "it died", 40, ("c1",)))
    told.event(20.0, report.PhaseEvent("saving"))
    assert told.document()["clusters"][1]["state"] == "ends"
    assert said(told, new=True) == starting  # it is resumed
    told.record("baselines", 0.0, losses={"guessing": 4.2})
    assert said(told) == starting
    told.event(0.0, report.PhaseEvent("training"))
    assert said(told) == training
    told.event(30.0, report.FailedEvent("stopped at once", at_once=True))
    assert said(told) == starting  # it is resumed once more
    assert said(told, state="stopped at once") == ("training", {"ended"}, {"0"})


def test_progress_is_that_of_the_fleet_and_of_each_cluster(told: Told, progress: report.ProgressEvent) -> None:
    told.event(65.0, progress)
    document = told.document()
    assert (document["progress"]["samples"], document["progress"]["samples_per_s"]) == (4000, 80.0)
    assert document["progress"]["left_s"] == 200.0
    assert told.document("finished")["progress"]["left_s"] is None
    assert [(each["samples_per_s"], each["rounds_merged"]) for each in document["clusters"]] == [(50.0, 7), (30.0, 6)]
    told.event(66.0, replace(progress, stop_s=100.0))
    assert told.document()["progress"]["left_s"] == 35.0


def test_losses_lie_over_time_and_over_the_samples_of_the_fleet(told: Told) -> None:
    told.update(1.0, "c0", 4.0)
    told.update(2.0, "c1", 3.0)
    told.update(3.0, "c0", 2.0, update=1)
    told.update(4.0, "c0")  # of a stage that knows no loss
    assert told.view.curves()["loss"] == {"c0": [(1.0, 16.0, 4.0), (3.0, 48.0, 2.0)], "c1": [(2.0, 32.0, 3.0)]}
    assert told.cluster("c0")["loss"] == pytest.approx(3.6)
    assert told.document()["progress"] is None


def test_baselines_are_there_from_the_beginning_and_those_of_the_summary_count_before_them(told: Told) -> None:
    assert told.document()["baselines"] == {}
    told.record("baselines", 0.0, losses={"guessing": 4.2, "nonsense": None})
    assert told.document()["baselines"] == {"guessing": 4.2}
    assert told.document("finished", baselines={"guessing": 4.0})["baselines"] == {"guessing": 4.0}


def test_a_run_that_has_failed_says_why_until_it_goes_on(told: Told) -> None:
    assert told.document("failed")["run"]["failure"] is None  # it could not write it down
    told.event(9.0, report.FailedEvent("no room"))
    assert told.document("failed")["run"]["failure"] == "no room"
    assert told.document("failed")["events"][-1]["tone"] == "bad"
    told.event(0.0, report.PhaseEvent("training"))
    assert told.document("running")["run"]["failure"] is None
    assert told.document("failed")["run"]["failure"] is None


def test_what_to_do_names_the_run(told: Told) -> None:
    told.event(9.0, report.WaitsForNodesEvent("all are gone", 60.0))
    assert "`ravnest stop r`" in told.document()["events"][-1]["to_do"]


def test_a_round_says_its_age_and_how_far_clusters_lag(told: Told, progress: report.ProgressEvent) -> None:
    told.event(60.0, report.RoundCommittedEvent(8, 3900, 0.75))
    told.event(65.0, progress)
    rounds = told.document(now_s=67.5)["rounds"]
    assert (rounds["committed"], rounds["age_s"], rounds["seconds"], rounds["samples_since"]) == (8, 7.5, 0.75, 100)
    assert rounds["planned_bytes"] == 10_000  # five units in rings of two clusters
    assert [told.cluster(name)["lag"] for name in ("c0", "c1")] == [1, 2]
    assert told.view.curves()["round_s"] == [(60.0, 0.75)]


def test_what_came_in_a_round_is_beside_what_was_planned(told: Told) -> None:
    told.event(60.0, report.RoundCommittedEvent(8, 3900))
    assert told.document()["rounds"]["bytes"] is None
    received = {"c0.s0": 2100, "c0.s1": 2900, "gone.s0": 50}
    told.event(61.0, report.RoundCommittedEvent(9, 4000, received=received))
    assert told.document()["rounds"]["bytes"] == 5050
    stages = [stage for name in ("c0", "c1") for stage in told.cluster(name)["stages"]]
    assert [stage["round_bytes"] for stage in stages] == [2100, 2900, None, None]
    assert [stage["planned_round_bytes"] for stage in stages] == [2000, 3000, 3000, 2000]


def test_a_round_names_its_slowest_hop_beside_what_was_planned(told: Told, plan: Plan) -> None:
    told.event(60.0, report.RoundCommittedEvent(8, 3900, 0.75))
    assert told.document()["rounds"]["slowest_hop"] is None
    told.event(61.0, report.RoundCommittedEvent(9, 4000, 0.75, report.Hop("c0.s0", "c1.s0", 5e5)))
    hop = told.document()["rounds"]["slowest_hop"]
    assert (hop["from_node"], hop["to_node"], hop["hop_bytes_per_s"]) == ("desk", "tower", 5e5)
    assert hop["planned_bytes_per_s"] == plan.fleet.flow_bytes_per_s("desk", "tower")


def test_the_document_has_the_worst_links_and_all_can_be_asked_for(told: Told) -> None:
    names = ("c0.s0", "c0.s1", "c1.s0", "c1.s1")
    rows = [
        {"from": a, "to": b, "hop_bytes_per_s": 1000.0 + i}
        for i, (a, b) in enumerate((a, b) for a in names for b in names)
    ]
    told.record("links", 1.0, links=rows)
    assert len(told.view.links()) == len(rows)
    assert told.document()["links"] == told.view.links()[:MOST_LINKS]


def test_the_document_has_the_hosts_of_experts_that_the_run_asks(told: Told) -> None:
    assert told.document()["experts"] == []
    host = {"host": "attic.00", "experts": 3, "most_experts": 8, "samples_per_s": 20.0, "answer_s": 0.01, "updates": 7}
    stages = {"c0.s1": {"batches": 4, "waited_s": 2.0, "requests": 32, "dropped": 1}}
    told.record("experts", 1.0, grids=[{"grid": "digits", "places": 16, "hosts": [host], "stages": stages}])
    (grid,) = told.document()["experts"]
    assert (grid["grid"], grid["hosted"], grid["wait_s"], grid["hosts"]) == ("digits", 3, 0.5, [host])
    text = metrics_text(told.document())
    assert 'ravnest_experts_wait_seconds{run="r",grid="digits"} 0.5' in text
    assert 'ravnest_host_answer_seconds{run="r",grid="digits",host="attic.00"} 0.01' in text


def test_a_round_trip_that_was_measured_is_beside_the_planned_one(told: Told) -> None:
    assert told.cluster("c0")["round_trip_s"] is None
    told.record("window", 1.0, cluster="c0", window=4, round_trip_s=1.5, pace_s=0.1)
    assert (told.cluster("c0")["round_trip_s"], told.cluster("c0")["planned_round_trip_s"]) == (1.5, 0.25)


def test_a_lost_cluster_says_why_until_it_trains_again(told: Told, progress: report.ProgressEvent) -> None:
    told.event(1.0, progress)
    told.record("time", 2.0, stages={name: {"compute": 0.9, "bubble": 0.1} for name in ("c0.s0", "c0.s1")})
    assert [each["state"] for each in told.cluster("c0")["stages"]] == ["works", "works"]
    told.event(3.0, report.ClusterLostEvent("c0", "c0.s1", "laptop", "it died", 40, ("c1",)))
    lost = told.cluster("c0", now_s=10.0)
    assert (lost["state"], lost["reason"], lost["state_s"], lost["samples_per_s"]) == ("lost", "it died", 7.0, 0.0)
    assert {each["state"] for each in lost["stages"]} == {"lost"}
    told.event(4.0, report.ReplacementFailedEvent("c0", "no node", 5.0))
    assert told.cluster("c0")["reason"] == "no node"
    told.event(9.0, report.ClusterReplacedEvent("c0", {"c0.s0": "desk", "c0.s1": "old-phone"}, 3, 6.0, 40))
    again = told.cluster("c0")
    assert (again["state"], again["reason"]) == ("trains", None)
    assert [each["node"] for each in again["stages"]] == ["desk", "old-phone"]
    assert told.document()["spares"] == [{"node": "old-phone", "reason": "its 0.1 GB hold no unit", "runs": "c0.s1"}]
    assert [each["tone"] for each in told.document()["events"]] == ["plain", "bad", "bad", "good"]


def test_a_cluster_that_is_cut_anew_has_other_stages(told: Told) -> None:
    event = report.ClusterReplannedEvent("c1", "other cuts", {"c1.s0": "tower"}, {"c1.s0": (0, 5)}, "gone", 3.0, None)
    told.event(5.0, event)
    found = told.cluster("c1")
    assert found["state"] == "starts"
    assert [(each["stage"], each["units"], each["planned_tensor_bytes"]) for each in found["stages"]] == [
        ("c1.s0", [0, 5], None)
    ]
    told.event(8.0, report.ClusterReplacedEvent("c1", {"c1.s0": "tower"}, 3, 3.0, 0))  # which names no units
    (stage,) = told.cluster("c1")["stages"]
    told.event(9.0, report.RoundCommittedEvent(3, 100, 1.0, None, {}))
    assert (told.document()["rounds"]["planned_bytes"], stage["planned_round_bytes"]) == (None, None)
    assert (stage["units"], stage["planned_tensor_bytes"]) == ([0, 5], None)


def test_a_cluster_that_is_made_during_the_run_is_shown(told: Told, progress: report.ProgressEvent) -> None:
    where, units = {"joined0.s0": "tower"}, {"joined0.s0": (0, 5)}
    event = report.ClusterReplannedEvent("joined0", "nodes that came", where, units, "'tower' came", 3.0, 40)
    told.event(5.0, event)
    assert told.cluster("joined0")["state"] == "starts"
    told.event(8.0, report.ClusterReplacedEvent("joined0", where, 3, 6.0, 0))
    told.record("update", 9.0, cluster="joined0", stage=0, update=4, lr=0.1, staleness=[0], loss=2.5, samples=64)
    made = report.ClusterProgress("joined0", 64, 8.0, 2.5, 0, 5, 3)
    told.event(9.5, replace(progress, clusters=(*progress.clusters, made)))
    found = told.cluster("joined0")
    assert (found["state"], found["loss"], found["samples_per_s"]) == ("trains", 2.5, 8.0)
    assert (found["predicted_samples_per_s"], found["planned_window"]) == (None, None)
    assert [(each["stage"], each["node"], each["units"], each["updates"]) for each in found["stages"]] == [
        ("joined0.s0", "tower", [0, 5], 5)
    ]
    assert "joined0" in told.view.curves()["loss"]
    told.event(10.0, replace(progress, samples=4010, clusters=(*progress.clusters, made)))
    later = {"cluster": "joined0", "stage": 0, "update": 300, "lr": 0.1, "staleness": [0], "loss": 2.4}
    told.record("update", 10.5, **later, samples=4816)  # where its schedule is, and not what it has made
    assert [samples for _, samples, _ in told.view.curves()["loss"]["joined0"]][-1] == 4010
    assert 'cluster="joined0"' in metrics_text(told.document())


def test_other_news_of_clusters_change_their_state(told: Told) -> None:
    told.event(1.0, report.ClusterLostEvent("c0", "c0.s0", "desk", "asked to", 0, ("c1",), with_notice=True))
    assert told.cluster("c0")["state"] == "left"
    assert told.document()["events"][-1]["tone"] == "note"
    told.event(2.0, report.ReplacementFailedEvent("c0", "never", None))
    assert told.cluster("c0")["state"] == "out"
    told.event(3.0, report.NodesSharedOutEvent("c0", ("desk",), "no memory"))
    assert told.cluster("c0")["reason"] == "no memory"
    told.event(4.0, report.RestartedEvent("all are gone", "checkpoint-000002", 5.0, planned_anew=False))
    assert told.cluster("c0")["state"] == "starts"
    told.event(0.0, report.PhaseEvent("training"))
    assert told.cluster("c0")["state"] == "trains"


def test_who_joins_stands_with_the_spares(told: Told) -> None:
    told.event(1.0, NodeJoinedEvent("new", False, 1e10, 10**9, 1e6, 1e6))
    assert told.document()["spares"][-1] == {"node": "new", "reason": "has joined the run", "runs": None}
    told.event(2.0, report.ClusterReplacedEvent("c0", {"c0.s0": "new", "c0.s1": "laptop"}, 3, 6.0, 40))
    assert told.document()["spares"][-1]["runs"] == "c0.s0"


def test_windows_and_memory_are_beside_what_was_planned(told: Told) -> None:
    before = told.cluster("c0")
    told.record("window", 1.0, cluster="c0", window=9, round_trip_s=1.0, pace_s=0.1)
    told.record("window", 2.0, cluster="c0", window=4, round_trip_s=1.0, pace_s=0.1)
    told.record("memory", 2.0, cluster="c0", stage=0, tensor_bytes={"weights": 100, "gradients": 11})
    after = told.cluster("c0")
    assert (after["window"], after["planned_window"]) == (4, 5)
    assert after["stages"][0]["tensor_bytes"] == 111
    assert after["stages"][0]["planned_tensor_bytes"] > before["stages"][0]["planned_tensor_bytes"]


def test_evaluations_checkpoints_and_baselines_are_told(told: Told) -> None:
    told.event(10.0, report.EvaluatedEvent(100, 2.5, {"accuracy": 0.5}, final=False))
    told.event(11.0, report.CheckpointWrittenEvent(Path("r/checkpoints/checkpoint-000003"), 3))
    document = told.document(now_s=15.0, baselines={"bigram": 2.3})
    assert document["checkpoint"] == {"name": "checkpoint-000003", "round": 3, "age_s": 4.0}
    assert (document["held_out"]["loss"], document["held_out"]["metrics"]) == (2.5, {"accuracy": 0.5})
    assert document["baselines"] == {"bigram": 2.3}
    assert len(told.view.curves()["held_out"]) == 1


def test_seconds_go_on_over_a_resume(told: Told) -> None:
    told.event(50.0, report.NoticeEvent("one"))
    told.event(0.0, report.PhaseEvent("training"))
    told.event(5.0, report.NoticeEvent("two"))
    assert [each["at_s"] for each in told.document()["events"]] == [0.0, 50.0, 50.0, 55.0]


def test_what_does_not_fit_is_left_out_and_counted(told: Told) -> None:
    told.record("lost", 1.0, cluster=5)
    told.record("notice", 1.0)
    told.record("update", 1.0, cluster="c7", stage=0, update=0, lr=0.1, staleness=[])
    told.record("window", 1.0, cluster="c7", window=3)
    told.record("time", 1.0, stages={"c7.s0": {"compute": 0.5}})
    told.record("something new", 1.0)
    assert told.document()["run"]["damaged_lines"] == 2
    assert told.document("running")["run"]["phase"] == "training"


def test_a_long_run_stays_small(told: Told, progress: report.ProgressEvent) -> None:
    for second in range(2000):
        told.update(second, "c0", 2.0, update=second)
        told.event(second, progress)
        told.event(second, report.NoticeEvent("again"))
    assert len(told.view.curves()["loss"]["c0"]) <= MOST_POINTS + 1
    assert len(told.document()["events"]) == MOST_EVENTS
    json.dumps(told.document(), allow_nan=False)


def test_numbers_that_are_not_finite_are_null(told: Told) -> None:
    told.event(1.0, report.EvaluatedEvent(100, float("nan"), {}, final=False))
    assert json.loads(json.dumps(told.document(), allow_nan=False))["held_out"]["loss"] is None
    assert told.document("finished")["clusters"][0]["state"] == "ended"
