import dataclasses

import pytest
import torch

from ravnest.errors import InvalidInput
from ravnest.launch import control as c
from ravnest.launch.folder import RunFolder
from ravnest.launch.handout import needed
from ravnest.launch.resume import Resumed, plan_fingerprint, states_for, writer_opener
from ravnest.materials import make_weights
from tests.support.local import JOB_FILE, setups_of, tiny_job


@pytest.fixture
def job():
    return tiny_job()


@pytest.fixture
def made(job):
    return setups_of(job, parts=(2, 1))


def save(folder, plan, setups, weights, updates, round_=3, resumed=None):
    writer = writer_opener(folder, plan, resumed)(c.CheckpointBegun(round_, 96, updates))
    writer.add_segment(0, weights)
    for setup in setups.values():
        writer.add_optimizer(setup.cluster, setup.index, {("w", "step"): torch.tensor(float(setup.index))})
    return writer.commit()


def test_a_new_run_starts_with_the_seed_s_weights(job, made):
    setups, plan = made
    states = states_for(setups, plan, job, None)
    expected = make_weights(job, JOB_FILE)
    for name, setup in setups.items():
        assert states[name].version == 0
        assert states[name].optimizer == {}
        assert all(torch.equal(states[name].weights[one], expected[one]) for one in needed(setup))


def test_a_resumed_run_starts_with_the_checkpoint(job, made, tmp_path):
    setups, plan = made
    folder = RunFolder(tmp_path)
    weights = {name: torch.full_like(tensor, 0.5) for name, tensor in make_weights(job, JOB_FILE).items()}
    save(folder, plan, setups, weights, {"c0": 4, "c1": 7})
    resumed = Resumed.load(folder, plan)
    assert (resumed.samples, resumed.rounds, resumed.updates) == (96, 3, {"c0": 4, "c1": 7})
    states = states_for(setups, plan, job, resumed)
    assert [states[name].version for name in setups] == [4, 4, 7]
    assert states["c0.s1"].optimizer[("w", "step")].item() == 1.0
    assert all(torch.equal(states["c0.s1"].weights[one], weights[one]) for one in needed(setups["c0.s1"]))


def test_what_the_model_does_not_save_is_made_anew(job, made, tmp_path):
    setups, plan = made
    folder = RunFolder(tmp_path)
    expected = make_weights(job, JOB_FILE)
    left_out = needed(setups["c0.s0"])[0]
    weights = {name: torch.zeros_like(tensor) for name, tensor in expected.items() if name != left_out}
    save(folder, plan, setups, weights, {"c0": 4, "c1": 7})
    state = states_for(setups, plan, job, Resumed.load(folder, plan))["c0.s0"]
    assert torch.equal(state.weights[left_out], expected[left_out])
    assert all(not state.weights[one].any() for one in needed(setups["c0.s0"]) if one != left_out)


def test_rounds_count_on_over_sessions(job, made, tmp_path):
    setups, plan = made
    folder = RunFolder(tmp_path)
    weights = make_weights(job, JOB_FILE)
    save(folder, plan, setups, weights, {"c0": 1, "c1": 1}, round_=3)
    first = Resumed.load(folder, plan)
    save(folder, plan, setups, weights, {"c0": 2, "c1": 2}, round_=2, resumed=first)
    assert Resumed.load(folder, plan).rounds == 5


def test_a_checkpoint_says_at_which_micro_batch_each_cluster_goes_on(job, made, tmp_path):
    setups, plan = made
    folder = RunFolder(tmp_path)
    save(folder, plan, setups, make_weights(job, JOB_FILE), {"c0": 4, "c1": 7})
    clusters = Resumed.load(folder, plan).checkpoint.manifest.clusters
    assert {name: one.next_micro_batch for name, one in clusters.items()} == {"c0": 12, "c1": 21}


def test_a_plan_with_other_cuts_is_refused(job, made, tmp_path):
    setups, plan = made
    folder = RunFolder(tmp_path)
    save(folder, plan, setups, make_weights(job, JOB_FILE), {"c0": 4, "c1": 7})
    _, other = setups_of(job, parts=(3, 1))
    with pytest.raises(InvalidInput, match="belongs to another plan"):
        Resumed.load(folder, other)


def test_a_later_stop_or_another_node_is_still_the_same_plan(made):
    _, plan = made
    moved = dataclasses.replace(plan.clusters[0].stages[0], node="n10")
    stages = (moved, *plan.clusters[0].stages[1:])
    clusters = (dataclasses.replace(plan.clusters[0], stages=stages), *plan.clusters[1:])
    other = dataclasses.replace(plan, clusters=clusters, job={**plan.job, "stop": {"samples": 10**6}})
    assert plan_fingerprint(other) == plan_fingerprint(plan)


def test_without_a_checkpoint_there_is_nothing_to_resume(made, tmp_path):
    (tmp_path / "checkpoints").mkdir()
    with pytest.raises(InvalidInput, match="no complete checkpoint"):
        Resumed.load(RunFolder(tmp_path), made[1])
