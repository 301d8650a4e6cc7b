"""`ravnest run` with options of the job and of the command that change what stages compute and send: one run of all.

The job splits backward passes, computes in bfloat16, averages in int8 with an outer optimizer; the command encrypts.
A tracker hears of it. What each option does alone is tested without processes, in tests/unit/ravnest. Activation
checkpointing and float16 are those of test_cli_rehearse.py.
"""

import ipaddress
import json
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest
import torch
import yaml
from safetensors.torch import load_file

from tests.support.commands import Running, nothing_left_in, planned, ravnest
from tests.support.zmtp import listening, listening_at, mechanism

pytestmark = pytest.mark.timeout(600)

AVERAGING = {
    "weighting": "equal",
    "outer": {"nesterov": {"lr": 0.7, "momentum": 0.5}},
    "wire": "int8",
    "robust": "none",
    "hierarchical": False,
    "buffers": {},
}
NOTING = [{"factory": "tiny:noting", "args": {"path": "noted"}}]
OPTIONS = {"averaging": AVERAGING, "split_backward": "always", "precision": "bfloat16", "report_to": NOTING}


Trained = tuple[Running, Counter[str | None], set[str]]


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Trained]:
    """The finished run, how many ports of its processes greeted with each mechanism while it trained, and where they
    listened."""
    with nothing_left_in(planned(tmp_path_factory.mktemp("options"), check="full", **OPTIONS)) as folder:
        running = Running(folder, "--encrypt")
        running.until("4 processes, encrypted")
        running.until_update(5)
        ends = [psutil.Process(running.process.pid), *running.stages()]
        assert len(ends) == 5
        greetings = Counter(mechanism(port) for end in ends for port in listening(end))
        addresses = {host for end in ends for host, _ in listening_at(end)}
        assert running.end() == 0, running.output
        yield running, greetings, addresses


def momentum(run: Path) -> dict[str, list[torch.Tensor]]:
    """By parameter: the outer optimizer's momentum that each cluster's stage saved."""
    latest = run / "checkpoints" / (run / "checkpoints" / "latest").read_text().strip()
    found: dict[str, list[torch.Tensor]] = {}
    for path in sorted(latest.glob("optimizer-*.safetensors")):
        for name, tensor in load_file(path).items():
            if name.endswith(".outer_momentum"):
                found.setdefault(name, []).append(tensor)
    return found


def test_the_plan_has_the_jobs_options(trained: Trained) -> None:
    plan = yaml.safe_load((trained[0].folder / "plan.yaml").read_text())
    assert plan["job"]["averaging"] == AVERAGING
    assert plan["workload"]["averaged_bytes_per_parameter_byte"] == pytest.approx((1 + 4 / 256) / 4)
    assert not any(stage.get("recomputes", False) for cluster in plan["clusters"] for stage in cluster["stages"])


def test_the_run_learns(trained: Trained) -> None:
    found = json.loads((trained[0].folder / "r/summary.json").read_text())
    assert found["samples"] >= 960
    assert found["held_out_loss"] < 0.6 * found["baselines"]["guessing"]


def test_every_lane_asks_for_a_key(trained: Trained) -> None:
    running, greetings, _ = trained
    assert greetings["CURVE"] == 2 * 5  # two lanes of the driver and of each stage
    assert set(greetings) <= {"CURVE", None}
    assert "/s, encrypted)" in running.output
    assert json.loads((running.folder / "r/summary.json").read_text())["encrypted"] is True


def test_no_lane_of_a_run_on_one_machine_is_reached_from_another(trained: Trained) -> None:
    found = [ipaddress.ip_address(host) for host in trained[2]]
    assert found
    assert all((getattr(one, "ipv4_mapped", None) or one).is_loopback for one in found), found


def test_the_last_stages_split_their_backward_passes(trained: Trained) -> None:
    lines = [json.loads(line) for line in (trained[0].folder / "r/metrics.jsonl").read_text().splitlines()]
    assert {(line["stage"], line["splits"]) for line in lines if line["kind"] == "split"} == {(1, True)}


def test_a_tracker_of_the_users_hears_of_every_record(trained: Trained) -> None:
    folder = trained[0].folder
    kinds = [json.loads(line)["kind"] for line in (folder / "r/metrics.jsonl").read_text().splitlines()]
    noted = (folder / "noted").read_text().split()
    assert len(noted) > 100
    assert noted == kinds[: len(noted)]
    assert "update" in noted
    assert "checkpoint" in noted


def test_all_clusters_save_the_same_outer_momentum(trained: Trained) -> None:
    saved = momentum(trained[0].folder / "r")
    assert saved
    assert all(len(copies) == 2 and torch.equal(*copies) and copies[0].any() for copies in saved.values())


def test_a_resume_goes_on_to_the_longer_end_of_the_plan(trained: Trained) -> None:
    """It changes the run's folder, so it comes after the tests that look at the first end."""
    folder = trained[0].folder
    before = json.loads((folder / "r/summary.json").read_text())
    planned(folder, **OPTIONS, stop={"samples": 1400})
    more = ravnest(folder, "run", "--out", "r", "--resume", "--encrypt", "--json")
    assert more.returncode == 0, more.stderr
    after = json.loads(more.stdout)
    assert after["samples"] >= 1400
    assert after["rounds"] > before["rounds"]
    assert after["held_out_loss"] < before["held_out_loss"] + 0.1


def test_a_resume_without_the_outer_optimizer_is_refused(trained: Trained) -> None:
    folder = trained[0].folder
    planned(folder, **{**OPTIONS, "averaging": {}}, stop={"samples": 1800})
    other = ravnest(folder, "run", "--out", "r", "--resume")
    assert other.returncode == 2
    assert "job.averaging.outer" in other.stderr
