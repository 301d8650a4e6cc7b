import dataclasses
import json

import pytest
import torch

from ravnest.checkpoints.run_folder import RunFolder
from ravnest.driver import control as c
from ravnest.driver.checkpoint_collector import parts_of_plan
from ravnest.driver.preparation import ResumedRun, made_with, needed, states_for, writer_opener
from ravnest.errors import InvalidInput
from ravnest.job.materials import make_weights
from tests.support.local import JOB_FILE, setups_of, tiny_job


@pytest.fixture
def job():
    return tiny_job()


@pytest.fixture
def made(job):
    return setups_of(job, parts=(2, 1))


def save(folder, plan, setups, weights, updates, round_=3, resumed=None, job=None):
    writer = writer_opener(folder, plan, job or tiny_job(), resumed)(c.BeginCheckpoint(round_, 96, updates))
    writer.add_segment(0, weights)
    for ring in range(1, len(plan.rings)):
        writer.add_segment(ring, {})
    for setup in setups.values():
        writer.add_optimizer(setup.cluster, setup.index, {("w", "step"): torch.tensor(float(setup.index))})
    return writer.commit(parts_of_plan(plan))


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
    resumed = ResumedRun.load(folder, plan, job)
    assert (resumed.samples, resumed.rounds, resumed.updates) == (96, 3, {"c0": 4, "c1": 7})
    states = states_for(setups, plan, job, resumed)
    assert [states[name].version for name in setups] == [4, 4, 7]
    assert states["c0.s1"].optimizer[("w", "step")].item() == 1.0
    assert all(torch.equal(states["c0.s1"].weights[one], weights[one]) for one in needed(setups["c0.s1"]))


def test_what_the_model_does_not_save_is_made_anew(tmp_path):
    job = tiny_job(model={"factory": "tiny:counting"})
    setups, plan = setups_of(job, parts=(2, 1))
    folder = RunFolder(tmp_path)
    saved = {name for setup in setups.values() for segment in setup.segments for name in segment.names}
    (unsaved,) = {name for setup in setups.values() for name in needed(setup)} - saved
    expected = make_weights(job, JOB_FILE)
    weights = {name: torch.zeros_like(expected[name]) for name in saved}
    save(folder, plan, setups, weights, {"c0": 4, "c1": 7}, job=job)
    states = states_for(setups, plan, job, ResumedRun.load(folder, plan, job))
    for name, setup in setups.items():
        for one in needed(setup):
            assert torch.equal(states[name].weights[one], expected[one] if one == unsaved else weights[one])


def without(path, file):
    """Take a file out of a checkpoint and out of its manifest."""
    (path / file).unlink()
    manifest = json.loads((path / "manifest.json").read_text())
    del manifest["files"][file]
    (path / "manifest.json").write_text(json.dumps(manifest))


@pytest.mark.parametrize("file", ["segment-000.safetensors", "optimizer-c1-000.safetensors"])
def test_a_checkpoint_that_lacks_a_part_of_the_plan_is_refused(job, made, tmp_path, file):
    setups, plan = made
    folder = RunFolder(tmp_path)
    save(folder, plan, setups, make_weights(job, JOB_FILE), {"c0": 2, "c1": 2})
    path = save(folder, plan, setups, make_weights(job, JOB_FILE), {"c0": 4, "c1": 7})
    without(path, file)
    with pytest.raises(
        InvalidInput, match=f"{path}: .* lacks {file}; to resume from checkpoint-000001, write"
    ) as raised:
        ResumedRun.load(folder, plan, job)
    assert raised.value.exit_code == 2


def test_one_that_lacks_averaged_copies_is_refused(tmp_path):
    job = tiny_job(model={"factory": "tied:gpt"}, tied="averaged")
    setups, plan = setups_of(job, parts=(3, 1))
    folder = RunFolder(tmp_path)
    save(folder, plan, setups, make_weights(job, JOB_FILE), {"c0": 4, "c1": 7}, job=job)
    resumed = ResumedRun.load(folder, plan, job)
    with pytest.raises(InvalidInput, match=f"it lacks segment-{len(plan.rings):03d}"):
        states_for(setups, plan, job, resumed)


def test_no_weight_that_was_trained_is_made_anew(job, made, tmp_path):
    setups, plan = made
    folder = RunFolder(tmp_path)
    lost = setups["c0.s0"].segments[0].parameters[0]
    weights = {name: tensor for name, tensor in make_weights(job, JOB_FILE).items() if name != lost}
    path = save(folder, plan, setups, weights, {"c0": 4, "c1": 7})
    with pytest.raises(InvalidInput, match=f"{path}: the checkpoint is not complete: it lacks {lost}"):
        states_for(setups, plan, job, ResumedRun.load(folder, plan, job))


def test_rounds_count_on_over_sessions(job, made, tmp_path):
    setups, plan = made
    folder = RunFolder(tmp_path)
    weights = make_weights(job, JOB_FILE)
    save(folder, plan, setups, weights, {"c0": 1, "c1": 1}, round_=3)
    first = ResumedRun.load(folder, plan, job)
    save(folder, plan, setups, weights, {"c0": 2, "c1": 2}, round_=2, resumed=first)
    assert ResumedRun.load(folder, plan, job).rounds == 5


def test_a_plan_with_other_cuts_is_refused(job, made, tmp_path):
    setups, plan = made
    folder = RunFolder(tmp_path)
    save(folder, plan, setups, make_weights(job, JOB_FILE), {"c0": 4, "c1": 7})
    _, other = setups_of(job, parts=(3, 1))
    with pytest.raises(InvalidInput, match=r"clusters: .*\[0, 8\].* now .*\[0, 5\].*plan\.yaml"):
        ResumedRun.load(folder, other, job)


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"update_every": 6}, r"job\.update_every: .* \(3, now 6\)"),
        ({"micro_batch": 2}, r"job\.micro_batch: .* \(4, now 2\)"),
        ({"seed": 4}, r"job\.seed: .* \(3, now 4\)"),
        ({"optimizer": {"name": "sgd", "lr": 0.1}}, r"job\.optimizer: .*adamw.*now.*sgd"),
        ({"optimizer": {"name": "adamw", "lr": 0.1, "amsgrad": True}}, r"job\.optimizer: .*amsgrad"),
        ({"data": {"factory": "tiny:words", "args": {"train": 7}}}, r"job\.data: "),
    ],
)
def test_a_job_that_the_state_does_not_fit_is_refused_by_key(job, made, tmp_path, changes, said):
    setups, plan = made
    folder = RunFolder(tmp_path)
    save(folder, plan, setups, make_weights(job, JOB_FILE), {"c0": 4, "c1": 7})
    with pytest.raises(InvalidInput, match=said):
        ResumedRun.load(folder, plan, tiny_job(**changes))


def test_a_later_stop_another_rate_or_another_node_still_fit(made):
    _, plan = made
    moved = dataclasses.replace(plan.clusters[0].stages[0], node="n10")
    stages = (moved, *plan.clusters[0].stages[1:])
    clusters = (dataclasses.replace(plan.clusters[0], stages=stages), *plan.clusters[1:])
    other = dataclasses.replace(plan, clusters=clusters)
    changed = tiny_job(stop={"samples": 10**6}, optimizer={"name": "adamw", "lr": 0.5}, average_every=960)
    assert made_with(other, changed) == made_with(plan, tiny_job())


def test_an_outer_optimizer_is_part_of_the_state_and_its_rates_are_not(job, made, tmp_path):
    setups, plan = made
    folder = RunFolder(tmp_path)
    nesterov = tiny_job(averaging={"outer": {"nesterov": {"lr": 0.5}}})
    assert made_with(plan, nesterov) == made_with(plan, tiny_job(averaging={"outer": {"nesterov": {}}, "wire": "int8"}))
    save(folder, plan, setups, make_weights(job, JOB_FILE), {"c0": 4, "c1": 7})
    ResumedRun.load(folder, plan, tiny_job(averaging={"weighting": "equal", "wire": "bfloat16"}))
    with pytest.raises(InvalidInput, match=r"job\.averaging\.outer: .*\(none, now nesterov\)"):
        ResumedRun.load(folder, plan, nesterov)


def test_a_checkpoint_from_before_outer_optimizers_had_none(job, made, tmp_path, monkeypatch):
    setups, plan = made
    folder = RunFolder(tmp_path)
    before = {key: value for key, value in made_with(plan, job).items() if key != "job.averaging.outer"}
    monkeypatch.setattr("ravnest.driver.preparation.made_with", lambda plan, job: before)
    save(folder, plan, setups, make_weights(job, JOB_FILE), {"c0": 4, "c1": 7})
    monkeypatch.undo()
    ResumedRun.load(folder, plan, job)
    with pytest.raises(InvalidInput, match=r"job\.averaging\.outer"):
        ResumedRun.load(folder, plan, tiny_job(averaging={"outer": {"nesterov": {}}}))


def test_without_a_checkpoint_there_is_nothing_to_resume(job, made, tmp_path):
    (tmp_path / "checkpoints").mkdir()
    with pytest.raises(InvalidInput, match="no complete checkpoint"):
        ResumedRun.load(RunFolder(tmp_path), made[1], job)
