import dataclasses
import math
from pathlib import Path

import pytest

from cluster_planner import Link, Node
from ravnest.driver.imitation import Imitation
from ravnest.driver.stage_setups import check_fingerprint, stage_setups
from ravnest.errors import InvalidInput
from ravnest.stage.setup import ImitatedNode
from tests.support.jobs.partly_frozen import FROZEN
from tests.support.local import captured_job, setups_of, tiny_job

CNN = {"model": {"factory": "tiny:cnn"}, "data": {"factory": "tiny:images"}}


def made(job, plan, **changes):
    arguments = {
        "search_dirs": [Path("/somewhere")],
        "threads": dict.fromkeys((node.name for node in plan.fleet.nodes), 1),
        "total_samples": 240,
        "token": b"t" * 16,
        **changes,
    }
    return stage_setups(plan, job, captured_job(job), **arguments)


def with_node(plan, name, **changes):
    nodes = tuple(dataclasses.replace(node, **changes) if node.name == name else node for node in plan.fleet.nodes)
    assert all(isinstance(node, Node) for node in nodes)
    return dataclasses.replace(plan, fleet=dataclasses.replace(plan.fleet, nodes=nodes))


def test_every_weight_is_in_one_segment_of_each_cluster_and_kept_by_one_member():
    job = tiny_job(**CNN)
    setups, _ = setups_of(job, parts=(2, 3, 1))
    by_cluster, kept = {}, []
    for setup in setups.values():
        names = [name for segment in setup.segments for name in segment.names]
        by_cluster.setdefault(setup.cluster, []).extend(names)
        kept += [name for segment in setup.segments if segment.keeper for name in segment.names]
        assert set(names) == {spec.name for spec in (*setup.program.parameters, *setup.program.buffers)}
    assert len({tuple(sorted(names)) for names in by_cluster.values()}) == 1
    assert sorted(kept) == sorted(by_cluster["c0"])
    assert len(set(kept)) == len(kept)


def test_members_of_a_ring_agree_on_everything_but_who_keeps_it():
    setups, plan = setups_of(tiny_job(**CNN), parts=(2, 3, 1))
    for ring in range(len(plan.rings)):
        held = [segment for setup in setups.values() for segment in setup.segments if segment.ring == ring]
        assert len(held) == 3
        assert len({dataclasses.replace(segment, keeper=False) for segment in held}) == 1
        assert sum(segment.keeper for segment in held) == 1


def test_batch_norm_s_buffers_are_averaged_and_its_counters_are_not():
    setups, _ = setups_of(tiny_job(**CNN), parts=(1,))
    (segment,) = setups["c0.s0"].segments
    assert segment.buffers == ("bn1.running_mean", "bn1.running_var", "bn2.running_mean", "bn2.running_var")
    assert segment.counters == ("bn1.num_batches_tracked", "bn2.num_batches_tracked")
    trained = sum(spec.size_bytes // 4 for spec in setups["c0.s0"].program.parameters)
    assert segment.progress.elements == trained
    assert segment.averaged_buffers.elements == 4 * 6


def test_frozen_parameters_are_kept_once_over_the_fleet_and_never_averaged():
    setups, _ = setups_of(tiny_job(model={"factory": "partly_frozen:gpt"}), parts=(2, 3))
    frozen = {"c0": [], "c1": []}
    for setup in setups.values():
        shapes = {spec.name: math.prod(spec.shape) for spec in setup.program.parameters}
        for segment in setup.segments:
            frozen[setup.cluster] += segment.frozen
            assert not set(segment.parameters) & set(FROZEN)
            assert segment.averaged_buffers is None
            assert segment.progress.elements == sum(shapes[name] for name in segment.parameters)
    assert sorted(frozen["c0"]) == sorted(frozen["c1"]) == sorted(FROZEN)
    kept = [name for setup in setups.values() for segment in setup.segments if segment.keeper for name in segment.names]
    assert [kept.count(name) for name in FROZEN] == [1] * len(FROZEN)


def test_the_fastest_uplink_keeps_a_segment_and_the_first_member_among_equals():
    job = tiny_job()
    setups, plan = setups_of(job, parts=(1, 1))
    assert [setups[name].segments[0].keeper for name in setups] == [True, False]
    setups = made(job, with_node(plan, "n10", up_bytes_per_s=2e7))
    assert [setups[name].segments[0].keeper for name in setups] == [False, True]


def test_stages_of_a_cluster_share_its_samples_and_its_number_of_updates():
    setups, plan = setups_of(tiny_job(), parts=(2, 1))
    assert setups["c0.s0"].bounds.share == setups["c0.s1"].bounds.share == plan.share("c0")
    assert setups["c0.s0"].bounds.share[1] == setups["c1.s0"].bounds.share[0]
    assert setups["c0.s0"].bounds.total_updates == setups["c0.s1"].bounds.total_updates == 10
    unknown = made(tiny_job(), plan, total_samples=None)
    assert unknown["c0.s0"].bounds.total_updates is None


def test_all_stages_hold_the_run_s_token_and_none_shows_it():
    setups, _ = setups_of(tiny_job(), parts=(2, 1), token=b"0123456789abcdef")
    assert {setup.transport.token for setup in setups.values()} == {b"0123456789abcdef"}
    assert "0123456789abcdef" not in repr(setups["c0.s0"])


def test_threads_are_those_of_the_node():
    job = tiny_job()
    _, plan = setups_of(job, parts=(2,))
    setups = made(job, plan, threads={"n00": 3, "n01": 5})
    assert [setup.machine.threads for setup in setups.values()] == [3, 5]


def test_only_an_imitation_tells_stages_of_their_nodes():
    job = tiny_job()
    setups, plan = setups_of(job, parts=(2, 1))
    for setup in setups.values():
        assert setup.imitated == ImitatedNode()
    for setup in made(job, plan, imitate=Imitation()).values():
        assert setup.imitated.links
        assert setup.imitated.pace is not None
        assert set(setup.imitated.node.arriving_bytes_per_s) == set(setup.imitated.links)
        assert setup.imitated.memory.node.startswith("n")


def test_any_tensor_that_a_stage_may_send_fits_in_a_message():
    job = tiny_job(micro_batch=32)
    setups, _ = setups_of(job, parts=(3,))
    for setup in setups.values():
        tensors = [spec.size_bytes for spec in (*setup.program.parameters, *setup.program.buffers)]
        boundary = sum(
            spec.dtype.itemsize * setup.evaluation.batch * 8 * 16 for spec in setup.program.outputs if not setup.is_last
        )
        assert setup.transport.max_message_bytes > max(*tensors, boundary)


def test_evaluation_batches_are_larger_where_the_batch_size_is_free():
    setups, _ = setups_of(tiny_job(), parts=(1,))
    captured = captured_job(tiny_job())
    assert captured.batch_is_dynamic
    assert setups["c0.s0"].evaluation.batch == 16
    assert setups["c0.s0"].evaluation.short_last


def test_a_model_that_was_not_planned_is_refused():
    job = tiny_job()
    _, plan = setups_of(job, parts=(1,))
    assert check_fingerprint(plan, captured_job(job), Path("plan.yaml")) is None
    other = captured_job(tiny_job(model={"factory": "tiny:gpt", "args": {"layers": 2, "width": 4}}))
    with pytest.raises(InvalidInput, match=r"^plan\.yaml: fingerprint: .*plan again"):
        check_fingerprint(plan, other, Path("plan.yaml"))


def test_each_stage_is_told_what_its_measured_links_hold():
    job = tiny_job()
    _, plan = setups_of(job, parts=(2, 1))
    links = (Link("n00", "n10", 0.05, 1e6),)
    told = made(job, dataclasses.replace(plan, fleet=dataclasses.replace(plan.fleet, links=links)))
    assert {name: set(setup.transport.in_flight_bytes) for name, setup in told.items()} == {
        "c0.s0": {"c1.s0"},
        "c0.s1": set(),
        "c1.s0": {"c0.s0"},
    }
