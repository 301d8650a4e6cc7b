"""`ravnest profile` and `ravnest doctor` on this machine alone, and probes over real sockets."""

import json
import shutil
import time
from pathlib import Path

import pytest

from cluster_planner import load_fleet
from ravnest.errors import NodeLost, RunFailed
from ravnest.profiling.agents import MachineAgent
from ravnest.profiling.probe_line import ProbeLine
from ravnest.profiling.probes import Ping, Pong, codec
from ring_allreduce.transport import TOKEN_BYTES, Lane, PeerAddress, ZmqEndpoint
from tests.support.commands import JOBS, ravnest, ravnest_process


@pytest.fixture(scope="module")
def profiled(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, dict[str, object]]:
    folder = tmp_path_factory.mktemp("profile")
    shutil.copytree(JOBS, folder, dirs_exist_ok=True)
    made = ravnest_process(folder, "profile", "--job", "job.yaml", "-o", "mine.yaml", "--json")
    assert made.returncode == 0, made.stderr
    return folder, json.loads(made.stdout)


def test_profile_writes_what_plan_takes(profiled: tuple[Path, dict[str, object]]) -> None:
    folder, document = profiled
    fleet = load_fleet(folder / "mine.yaml")
    (node,) = fleet.nodes
    assert document["flops_per_byte"] == fleet.flops_per_byte
    assert node.flops_per_s > 0
    assert 0 < node.memory_bytes < 10**13
    assert document["missing"] == []
    assert any("not measured" in note for note in document["notes"])  # type: ignore[attr-defined]
    assert (folder / "mine.yaml").read_text().startswith("# Measured by `ravnest profile`")


def test_profile_without_a_job_measures_the_default_work(tmp_path: Path) -> None:
    made = ravnest_process(tmp_path, "profile", "-o", "mine.yaml", "--json")
    assert made.returncode == 0, made.stderr
    assert json.loads(made.stdout)["missing"] == []
    assert load_fleet(tmp_path / "mine.yaml").nodes[0].flops_per_s > 0


def test_profile_replaces_no_file_unasked(profiled: tuple[Path, dict[str, object]]) -> None:
    folder, _ = profiled
    before = (folder / "nodes.yaml").read_text()
    refused = ravnest(folder, "profile")
    assert refused.returncode == 2
    assert "--merge" in refused.stderr
    assert (folder / "nodes.yaml").read_text() == before


def test_doctor_finds_a_healthy_machine_fit_and_names_what_a_plan_lacks(
    profiled: tuple[Path, dict[str, object]],
) -> None:
    folder, _ = profiled
    assert ravnest(folder, "plan", "nodes.yaml", "--check", "none").returncode == 0
    healthy = ravnest(folder, "doctor", "plan.yaml", "--json")
    assert healthy.returncode == 0, healthy.stdout
    assert json.loads(healthy.stdout)["would_fail"] is False
    (folder / "tiny.py").rename(folder / "gone.py")
    sick = ravnest(folder, "doctor", "plan.yaml", "--json")
    (folder / "gone.py").rename(folder / "tiny.py")
    assert sick.returncode == 1
    findings = json.loads(sick.stdout)["findings"]
    assert {finding["about"] for finding in findings if finding["level"] == "fails"} == {"this machine"}
    assert any("no module 'tiny'" in finding["message"] for finding in findings)


def test_doctor_names_an_address_where_nobody_answers(tmp_path: Path) -> None:
    found = ravnest(tmp_path, "doctor", "--address", "127.0.0.1:1", "--json")
    assert found.returncode == 1
    (named,) = [each for each in json.loads(found.stdout)["findings"] if "127.0.0.1:1" in each["message"]]
    assert (named["level"], named["about"]) == ("fails", "this machine")
    assert "reaches no Ray cluster" in named["message"]
    assert ravnest(tmp_path, "doctor", "--address", "nowhere").returncode == 2
    assert ravnest(tmp_path, "doctor", "missing.yaml").returncode == 2


def test_agents_measure_each_other_and_a_silent_peer_is_late() -> None:
    token = b"t" * 16
    agents = {name: MachineAgent(name, "127.0.0.1") for name in ("a", "b")}
    try:
        addresses = {name: agent.listen(token) for name, agent in agents.items()}
        for agent in agents.values():
            agent.meet(addresses)
        reach = agents["a"].reach({"b": addresses["b"]})["b"]
        assert (reach.pipeline, reach.bulk) == (None, None)
        for lane in ("PIPELINE", "BULK"):
            times = agents["a"].ping("b", lane, 5, 0.0, 20.0)
            assert len(times.round_trips_s) == 5
            assert abs(times.clock_offsets_s[-1]) < 1.0
        arrivals = agents["b"].transfer(["a"], 0.3, 20.0).by_peer["a"]
        assert arrivals[-1][1] > 10**6
        agents["b"].close()
        with pytest.raises(NodeLost, match="a got no answer from b within"):
            agents["a"].ping("b", "PIPELINE", 1, 0.0, 0.3)
    finally:
        for agent in agents.values():
            agent.close()


def test_a_message_that_cannot_be_sent_fails_one_measurement_and_no_other() -> None:
    agents = {name: MachineAgent(name, "127.0.0.1") for name in ("a", "b")}
    try:
        addresses = {name: agent.listen(b"t" * 16) for name, agent in agents.items()}
        for agent in agents.values():
            agent.meet(addresses)
        with pytest.raises(NodeLost, match="a cannot send to stranger: peer 'stranger' is unknown"):
            agents["a"].ping("stranger", "PIPELINE", 1, 0.0, 20.0)
        assert len(agents["a"].ping("b", "PIPELINE", 2, 0.0, 20.0).round_trips_s) == 2
    finally:
        for agent in agents.values():
            agent.close()


def test_an_address_that_cannot_be_listened_at_or_used_is_an_error_of_ravnests() -> None:
    with pytest.raises(RunFailed, match=r"a cannot listen at 192\.0\.2\.1"):
        MachineAgent("a", "192.0.2.1").listen(b"t" * 16)
    agent = MachineAgent("a", "127.0.0.1")
    try:
        agent.listen(b"t" * 16)
        with pytest.raises(RunFailed, match="a cannot use its peers' addresses: peer 'b' has no valid ports"):
            agent.meet({"b": PeerAddress("127.0.0.1", 0, 0)})
    finally:
        agent.close()


@pytest.mark.parametrize("knows", [True, False])
def test_a_probe_answers_nobody_who_does_not_know_its_token(knows: bool) -> None:
    token = bytes(range(TOKEN_BYTES))
    line = ProbeLine("a", "127.0.0.1", token)
    other = ZmqEndpoint("b", codec=codec(), token=token if knows else bytes(TOKEN_BYTES), shared_memory=False)
    try:
        line.connect({"b": other.address})
        other.connect({"a": line.address})
        other.send("a", Lane.PIPELINE, Ping(number=7))
        end_s = time.monotonic() + (20.0 if knows else 1.0)
        while not (heard := other.poll(0.05)) and time.monotonic() < end_s:
            pass
        assert [type(each.message) for each in heard] == [Pong] * knows
    finally:
        line.close()
        other.close()
