"""`ravnest rehearse`: imitated links and nodes, predicted against achieved, a normal run folder.

The job recomputes activations and computes in float16, which so are tried in real processes too.
"""

import json
from pathlib import Path

import pytest
import yaml

from ravnest.driver.observe.metrics_file import read_metrics
from tests.support.commands import LONG, Running, gone, planned, ravnest

pytestmark = pytest.mark.timeout(300)

OPTIONS = {"activation_checkpointing": "always", "precision": "float16"}


def test_a_rehearsal_ends_with_predicted_against_achieved_and_leaves_a_run(tmp_path: Path) -> None:
    folder = planned(tmp_path, check="full", **OPTIONS)
    plan = yaml.safe_load((folder / "plan.yaml").read_text())
    assert all(stage["recomputes"] for cluster in plan["clusters"] for stage in cluster["stages"])
    done = ravnest(folder, "rehearse", "--speed", "2", "--samples", "480", "--out", "r", "--json")
    assert done.returncode == 0, done.stderr
    assert "rehearsing at speed 2" in done.stderr
    document = json.loads(done.stdout)
    rehearsal, run = document["rehearsal"], document["run"]
    assert 480 <= run["samples"] < 600  # of the job's 960; what was in flight at the end is made
    assert rehearsal["steady"] is True
    assert isinstance(rehearsal["faithful"], bool)  # how late this machine was is measured
    assert rehearsal["faithful"] == (not rehearsal["unfaithful_in"])
    assert ("computing" in rehearsal["unfaithful_in"]) == (rehearsal["most_late_share"] > 0.02)
    assert ("links" in rehearsal["unfaithful_in"]) == (rehearsal["links_late_share"] > 0.02)
    assert [cluster["name"] for cluster in rehearsal["clusters"]] == ["c0", "c1"]
    for cluster in rehearsal["clusters"]:
        assert cluster["samples_per_s"]["achieved"] <= 1.1 * cluster["samples_per_s"]["predicted"]  # no faster machine
        for stage in cluster["stages"]:
            assert 0 < stage["busy"]["achieved"] <= 1
            assert stage["max_staleness"] <= rehearsal["staleness_bound"]
            assert stage["memory_bytes"]["achieved"] > 0
    # In the plan's time: a round crosses the link of 60 ms between the clusters at least twice.
    assert rehearsal["averaging_s"]["achieved"] > 2 * 0.06
    lines = [json.loads(line) for line in (folder / "r/metrics.jsonl").read_text().splitlines()]
    told = [line for line in lines if line["kind"] == "progress"]
    assert {line["total_samples"] for line in told} == {480}  # what it counts to is where it ends
    assert told[-1]["samples"] == run["samples"]
    assert all(line["seconds"] > 0 for line in lines if line["kind"] == "round")
    assert not any(line["kind"] == "split" for line in lines)
    assert run["held_out_loss"] < 0.6 * run["baselines"]["guessing"]
    assert (folder / "r/weights.safetensors").is_file()
    assert json.loads((folder / "r/summary.json").read_text())["samples"] == run["samples"]


def test_a_machine_of_a_scenario_is_silent_then_lost_and_is_back(tmp_path: Path) -> None:
    folder = planned(tmp_path, **LONG)
    (folder / "scenario.yaml").write_text("deaths: [{node: b1, at_s: 3, back_after_s: 60}]")
    running = Running(folder, "--whole", "--scenario", "scenario.yaml", command="rehearse")
    running.until("has left the run")
    (lost,) = [one for one in read_metrics(folder / "r/metrics.jsonl") if one["kind"] == "lost"]
    assert "has been silent for" in str(lost["reason"])
    assert lost["cluster"] == "c1", "b1 is a machine of it"
    running.until("node 'b1' is back")
    assert any(one["kind"] == "joined" and one["node"] == "b1" for one in read_metrics(folder / "r/metrics.jsonl"))
    family = running.family()
    running.process.terminate()
    assert running.end() == 130, running.output
    assert "Traceback" not in running.output
    assert gone(family)


def test_a_scenario_that_cannot_be_acted_out_is_refused_before_anything_starts(tmp_path: Path) -> None:
    folder = planned(tmp_path)
    (folder / "scenario.yaml").write_text("compute_jitter: 0.1")
    refused = ravnest(folder, "rehearse", "--scenario", "scenario.yaml", "--out", "r")
    assert refused.returncode == 2
    assert "scenario.yaml: compute_jitter: a rehearsal does not act this out" in refused.stderr
    (folder / "scenario.yaml").write_text("kills: [{node: nobody, at_s: 3}]")
    refused = ravnest(folder, "rehearse", "--scenario", "scenario.yaml", "--out", "r")
    assert refused.returncode == 2
    assert "scenario.yaml: kills[0].node: no node of the plan is named 'nobody'" in refused.stderr
    assert not (folder / "r").exists()
