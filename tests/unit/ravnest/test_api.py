import warnings
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

import ravnest
from cluster_planner import Fleet, Node, predicted_again, save_plan
from ravnest.machines import all_here
from tests.support.local import JOB_FILE
from tests.unit.ravnest.simulator.test_fleet import home_plan

NODE = Node(name="a", flops_per_s=1e9, memory_bytes=10**9, up_bytes_per_s=1e6, down_bytes_per_s=1e6)


@pytest.fixture
def plan_file(tmp_path: Path) -> Path:
    path = tmp_path / "plan.yaml"
    save_plan(predicted_again(home_plan()), path)
    return path


def refused(call: Any, *args: Any, **options: Any) -> ravnest.InvalidInput:
    with pytest.raises(ravnest.InvalidInput) as raised:
        call(*args, **options)
    return raised.value


def test_a_run_of_one_machine_says_so_where_the_plan_names_others(plan_file: Path) -> None:
    plan = ravnest.load_plan(plan_file)
    used = [stage.node for cluster in plan.clusters for stage in cluster.stages]
    assert all_here(plan, ()) is None
    nodes = [replace(node, address=f"192.0.2.{at}") for at, node in enumerate(plan.fleet.nodes)]
    away = replace(plan, fleet=replace(plan.fleet, nodes=tuple(nodes)))
    said = all_here(away, ("192.0.2.0",))
    assert said is not None
    assert said.startswith(f"all {len(used)} stages run on this machine")
    assert nodes[1].name in said
    assert f"{nodes[0].name} " not in said
    assert "--address HOST:PORT" in said
    assert all_here(away, {f"192.0.2.{at}" for at in range(len(nodes))}) is None


def test_run_tells_it_before_it_trains_and_not_where_an_address_is_given(
    plan_file: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    plan = ravnest.load_plan(plan_file)
    nodes = tuple(replace(node, address="192.0.2.9") for node in plan.fleet.nodes)
    save_plan(replace(plan, fleet=replace(plan.fleet, nodes=nodes)), plan_file)
    told: list[str] = []
    monkeypatch.setattr("ravnest.driver.run", lambda *_, **__: told.append("trains"))
    ravnest.run(plan_file, warn=told.append)
    assert len(told) == 2
    assert told[0].startswith("all ")
    assert "192.0.2.9" in told[0]
    with pytest.warns(UserWarning, match="nodes have addresses elsewhere"):
        ravnest.run(plan_file)
    told.clear()
    ravnest.run(plan_file, warn=told.append, address="192.0.2.9:6379")
    assert told == ["trains"]


@pytest.mark.parametrize(
    ("address", "asked", "done"),
    [(None, None, False), ("192.0.2.1:6379", None, True), ("192.0.2.1:6379", False, False), (None, True, True)],
)
def test_a_run_over_several_machines_is_encrypted_unless_told_otherwise(
    plan_file: Path, monkeypatch: pytest.MonkeyPatch, address: str | None, asked: bool | None, done: bool
) -> None:
    given: dict[str, Any] = {}
    monkeypatch.setattr("ravnest.driver.run", lambda *_, **options: given.update(options))
    ravnest.run(plan_file, address=address, encrypt=asked)
    assert given["encrypt"] is done


def test_plan_takes_a_fleet_and_a_job_made_in_python(tmp_path: Path) -> None:
    fleet = Fleet(tuple(replace(NODE, name=name) for name in "ab"))
    told: list[str] = []
    plan = ravnest.plan(fleet, ravnest.load_job(JOB_FILE), min_stages=2, progress=told.append)
    assert [stage.node for stage in plan.clusters[0].stages] in (["a", "b"], ["b", "a"])
    assert plan.job_file == str(JOB_FILE)
    assert told[0] == "loading the data"
    ravnest.save_plan(plan, tmp_path / "plan.yaml")
    assert ravnest.load_plan(tmp_path / "plan.yaml").clusters == plan.clusters


def test_a_plan_can_be_explained() -> None:
    explained = ravnest.explain_plan(Fleet((NODE,)), JOB_FILE)
    assert len(explained.search) > 0
    assert explained.largest_round > 0


def test_a_job_that_is_missing_is_asked_for(tmp_path: Path) -> None:
    error = refused(ravnest.plan, Fleet((NODE,)))
    assert (error.key, "job.yaml" in str(error.hint)) == ("job", True)
    ravnest.save_fleet(Fleet((NODE,)), tmp_path / "nodes.yaml")
    assert ravnest.load_fleet(tmp_path / "nodes.yaml").names == ("a",)
    assert str(refused(ravnest.plan, tmp_path / "nodes.yaml")) == f"{tmp_path / 'job.yaml'}: no such file"


def test_the_sampled_check_alone_takes_huge_pages_before_the_job_makes_a_tensor(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    calls: list[str] = []

    def job(*_: object) -> None:
        calls.append("job")
        raise ravnest.InvalidInput("mine")

    monkeypatch.setattr("ravnest.api.take_huge_pages", lambda: calls.append("pages"))
    monkeypatch.setattr("ravnest.api.job_for", job)
    for check in ("full", "sampled", "none"):
        refused(ravnest.plan, Fleet((NODE,)), JOB_FILE, check=check)
    assert calls == ["job", "pages", "job", "job"]


def test_a_seed_that_no_search_takes_is_refused() -> None:
    assert refused(ravnest.plan, Fleet((NODE,)), JOB_FILE, seed=-1).key == "seed"


def test_simulate_takes_a_plan_or_its_file_and_gives_the_same(plan_file: Path) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        simulated = ravnest.simulate(plan_file, samples=600, seed=3, jitter=0.1)
    again = ravnest.simulate(ravnest.load_plan(plan_file), samples=600, seed=3, scenario=ravnest.Scenario(0.1))
    assert simulated.samples >= 600
    assert (simulated.end_s, simulated.staleness) == (again.end_s, again.staleness)
    assert simulated.too_short is not None


def test_a_plan_that_breaks_the_rules_is_refused_as_its_file_is(plan_file: Path) -> None:
    plan = ravnest.load_plan(plan_file)
    comer = replace(plan.fleet.nodes[0], name="comer")
    neither = replace(plan, fleet=replace(plan.fleet, nodes=(*plan.fleet.nodes, comer)))
    assert refused(ravnest.simulate, neither, samples=600).key == "nodes[6].name"
    small = replace(plan.fleet.nodes[0], memory_bytes=1000)
    short = replace(plan, fleet=replace(plan.fleet, nodes=(small, *plan.fleet.nodes[1:])))
    assert refused(ravnest.simulate, short, samples=600).key == f"nodes[{small.name}].memory_gb"


def test_simulate_says_what_of_the_scenario_came_too_late(plan_file: Path) -> None:
    scenario = ravnest.Scenario(stalls=(ravnest.Stall("n1", 50000.0, 30.0),))
    assert ravnest.simulate(plan_file, samples=600, scenario=scenario).unreached == ("stalls[0] (n1 at 50000 s)",)


@pytest.mark.parametrize(
    ("options", "key"),
    [
        ({"hours": 1, "samples": 5}, "samples"),
        ({"hours": -1}, "hours"),
        ({"samples": 0}, "samples"),
        ({"jitter": -0.5}, "jitter"),
        ({"link_jitter_ms": float("inf")}, "link_jitter_ms"),
    ],
)
def test_impossible_arguments_of_simulate_are_refused(plan_file: Path, options: dict[str, Any], key: str) -> None:
    assert refused(ravnest.simulate, plan_file, **options).key == key


@pytest.mark.parametrize(
    ("options", "key"),
    [({"speed": 0}, "speed"), ({"minutes": -1}, "minutes"), ({"samples": 5, "whole": True}, "samples")],
)
def test_impossible_arguments_of_rehearse_are_refused_before_anything_is_read(
    tmp_path: Path, options: dict[str, Any], key: str
) -> None:
    assert refused(ravnest.rehearse, tmp_path / "none.yaml", **options).key == key


@pytest.mark.parametrize(
    ("options", "key"),
    [
        ({}, None),
        ({"tensorboard": "t", "force": True}, "force"),
        ({"tensorboard": "t", "dtype": "float16"}, "dtype"),
        ({"weights": "w.pt"}, "weights"),
        ({"weights": "w.safetensors", "part_gb": -1.0}, "part_gb"),
    ],
)
def test_impossible_arguments_of_export_are_refused(tmp_path: Path, options: dict[str, Any], key: str | None) -> None:
    assert refused(ravnest.export, tmp_path, **options).key == key


@pytest.mark.parametrize("limit", [{"samples": 0}, {"seconds": -1.0}, {"seconds": float("nan")}])
def test_a_limit_that_no_run_can_have_is_refused(limit: dict[str, Any]) -> None:
    (key,) = limit
    assert refused(ravnest.RunLimit, **limit).key == f"limit.{key}"


def test_evaluate_refuses_data_of_another_name(tmp_path: Path) -> None:
    assert refused(ravnest.evaluate, tmp_path, data="test").key == "data"


def test_a_folder_without_a_run_is_refused(tmp_path: Path) -> None:
    for call in (ravnest.evaluate, lambda run: ravnest.export(run, weights="w.safetensors")):
        assert "no run is here" in str(refused(call, tmp_path))
