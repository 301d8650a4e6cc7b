"""The file by which another driver takes a run over."""

from dataclasses import replace
from pathlib import Path

import msgspec
import pytest

from cluster_planner import Constraints, Fleet, Node, Pin, Spare, load_plan, with_cluster
from ravnest.driver.run_store import (
    Remembering,
    RunStore,
    TakenOver,
    addresses_in,
    came_since,
    load_plan_beside,
    load_state,
    plan_beside,
    plan_of_comers,
    plan_sum,
    plan_with_comers,
)
from ravnest.errors import InvalidInput
from ravnest.recovery import Nodes, Place, place, with_nodes
from tests.support.local import setups_of, tiny_job
from tests.support.takeover import STATE


@pytest.fixture(scope="module")
def plan():
    return setups_of(tiny_job(), parts=(2, 2))[1]


def test_what_is_written_is_read_again_and_is_its_owners_alone(tmp_path: Path, plan) -> None:
    path = tmp_path / "driver.json"
    assert load_state(path) is None
    RunStore(path, 0).save(STATE, plan)
    assert load_state(path) == STATE
    assert path.stat().st_mode & 0o777 == 0o600
    assert plan_beside(path).is_file()
    assert sorted(each.name for each in tmp_path.iterdir()) == ["driver.json", "driver.plan.yaml"]
    assert addresses_in(STATE)["c1.s1"].peer.pipeline_port == 5000


@pytest.mark.parametrize("text", [b"", b"{", b"[]", b"\xff", b'{"version": 1}'])
def test_what_is_no_state_is_refused_by_name(tmp_path: Path, text: bytes) -> None:
    path = tmp_path / "driver.json"
    path.write_bytes(text)
    with pytest.raises(InvalidInput, match="is no state of a run's driver") as caught:
        load_state(path)
    assert caught.value.path == str(path)


def test_another_version_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "driver.json"
    path.write_bytes(msgspec.json.encode(msgspec.structs.replace(STATE, version=99)))
    with pytest.raises(InvalidInput, match="is of version 99"):
        load_state(path)


def test_a_driver_whose_run_was_taken_over_writes_and_removes_nothing(tmp_path: Path, plan) -> None:
    path = tmp_path / "driver.json"
    first, second = RunStore(path, 0), RunStore(path, 1)
    first.save(STATE, plan)
    second.claim(STATE, plan)
    with pytest.raises(TakenOver):
        first.save(STATE, plan)
    assert first.is_anothers
    first.remove()
    found = load_state(path)
    assert found is not None
    assert found.term == 1
    second.remove()
    assert list(tmp_path.iterdir()) == []


def test_a_disk_that_refuses_is_told_of_once_and_ends_nothing(tmp_path: Path, plan) -> None:
    folder, told = tmp_path / "run", list[str]()
    remembering = Remembering(RunStore(folder / "driver.json", 0), lambda: STATE, lambda: plan, told.append)
    remembering()
    remembering()
    assert len(told) == 1
    assert "driver.json cannot be written" in told[0]
    folder.mkdir()
    remembering()
    assert load_state(folder / "driver.json") == STATE
    assert len(told) == 1
    with pytest.raises(InvalidInput):
        RunStore(tmp_path / "gone" / "driver.json", 1).claim(STATE, plan)


@pytest.mark.parametrize("how", ["given", "pinned"])
def test_the_plan_of_a_run_that_has_changed_it_can_be_taken_over(tmp_path: Path, plan, how: str) -> None:
    """A cluster that is away has given a node to another one; or a node is gone that was to run a stage."""
    (first, gone), (given, _) = ([stage.node for stage in cluster.stages] for cluster in plan.clusters)
    spare = Node(name="spare", flops_per_s=1e9, memory_bytes=10**10, up_bytes_per_s=1e7, down_bytes_per_s=1e7)
    rules = Constraints(pins=(Pin(gone, "c0"),) if how == "pinned" else ())
    fleet = replace(plan.fleet, nodes=(*plan.fleet.nodes, spare), constraints=rules)
    found = place(replace(plan, fleet=fleet, spares=(Spare("spare", ""),)), "c0", Nodes([first], ["spare"]), ["c1"])
    assert isinstance(found, Place)
    changed, path = found.placement.plan, tmp_path / "driver.json"
    if how == "given":
        stages = tuple(
            replace(each, node=given) if each.node == "spare" else each for each in changed.clusters[0].stages
        )
        changed = with_cluster(changed, replace(changed.clusters[0], stages=stages), "")
    assert came_since(path) == ()
    RunStore(path, 0).save(STATE, changed)
    assert load_plan_beside(path).clusters == changed.clusters
    assert "spare" in came_since(path)
    with pytest.raises(InvalidInput):
        load_plan(plan_beside(path))


def test_a_plan_that_cannot_be_read_is_named(tmp_path: Path) -> None:
    with pytest.raises(InvalidInput) as caught:
        plan_sum(tmp_path / "plan.yaml")
    assert caught.value.path == str(tmp_path / "plan.yaml")


def test_the_plan_of_a_run_to_which_nodes_have_come_is_kept_for_those_who_resume_it(tmp_path: Path, plan) -> None:
    planned = tmp_path / "plan.yaml"
    planned.write_text("as the user has it")
    state = msgspec.structs.replace(STATE, plan=plan_sum(planned))
    node = replace(plan.fleet.nodes[0], name="new")
    grown = with_nodes(plan, Fleet((node,)), ["new"])

    def again(path: Path):
        return plan_with_comers(tmp_path, plan, path, lambda found: found.fleet.names)

    store = RunStore(tmp_path / "driver.json", 0)
    store.save(state, plan)
    store.remove()
    assert again(planned) is plan
    store = RunStore(tmp_path / "driver.json", 0)
    store.save(state, plan)
    store.save(state, grown)
    store.remove()
    assert again(planned).fleet.names == grown.fleet.names
    other = tmp_path / "other.yaml"
    other.write_text("of another run")
    assert again(other) is plan
    plan_of_comers(tmp_path, plan_sum(planned)).write_text("{")
    assert again(planned) is plan
