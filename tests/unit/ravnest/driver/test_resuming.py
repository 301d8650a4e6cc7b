import dataclasses
import json
from dataclasses import replace

import pytest
import torch

from cluster_planner import Cluster, Fleet, Stage, cluster_at, with_cluster
from ravnest.checkpoints.run_folder import RunFolder
from ravnest.driver import instructions as ins
from ravnest.driver.in_process import LocalRun
from ravnest.driver.preparation import needed, states_for, writer_opener
from ravnest.driver.resuming import ResumedRun, check_same_as_before, data_made_with, made_with
from ravnest.driver.session import run_control
from ravnest.errors import InvalidInput
from ravnest.job.initial_weights import make_weights
from ravnest.recovery import with_nodes
from tests.support.local import JOB_FILE, local_run, parts_of_plan, setups_by, setups_of, tiny_job
from tests.support.state import saved


@pytest.fixture
def job():
    return tiny_job()


@pytest.fixture
def made(job):
    return setups_of(job, parts=(2, 1))


def save(folder, plan, setups, weights, updates, round_=3, resumed=None, job=None, unmade=None):
    begun = ins.BeginCheckpoint(round_, 96, updates, unmade=unmade or {})
    writer = writer_opener(folder, lambda: plan, job or tiny_job(), resumed)(begun)
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


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"versions": {"c0": 4}}, "versions: must have the updates of c0, c1, not of c0"),
        ({"versions": {"c0": 4, "c1": 7, "c2": 1}}, "versions: .* not of c0, c1, c2"),
        ({"versions": {}}, "versions: .* not of nothing"),
        ({"lost": ["c2"]}, "lost: must name some of c0, c1, but not all of them, not c2"),
        ({"lost": ["c0", "c1"]}, "lost: .* not c0, c1"),
        ({"versions": {"c0": 4, "c1": 2**63}}, "is not a manifest: .*<= 4611686018427387904 - at .*versions"),
    ],
)
def test_a_manifest_that_speaks_of_other_clusters_is_refused_by_key(job, made, tmp_path, changes, said):
    setups, plan = made
    folder = RunFolder(tmp_path)
    path = save(folder, plan, setups, make_weights(job, JOB_FILE), {"c0": 4, "c1": 7}) / "manifest.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | changes))
    with pytest.raises(InvalidInput, match=f"{path.parent}.*: .*{said}"):
        ResumedRun.load(folder, plan, job)


@pytest.mark.parametrize(
    "clusters",
    [
        "",
        "[",
        "{}",
        "[]",
        "7",
        "[" * 5000,
        "[[]]",
        '[["c0"]]',
        '[["c0", 3]]',
        '[["c0", [0, "8"]]]',
        '[["c0", [0, 3, 8]]]',
        '[[["c0"], [0, 8]]]',
        "[[7, [0, 8]]]",
        '[["c0", [0, 3], [4, 8]]]',
        '[["c0", [0, 8]], ["c1", [0, 7]]]',
        '[["c0", [0, 8], [8, 8]]]',
        '[["c0", [false, true]]]',
    ],
)
def test_a_manifest_without_the_stages_that_it_is_of_is_refused_by_key(job, made, tmp_path, clusters):
    setups, plan = made
    folder = RunFolder(tmp_path)
    path = save(folder, plan, setups, make_weights(job, JOB_FILE), {"c0": 4, "c1": 7}) / "manifest.json"
    manifest = json.loads(path.read_text())
    manifest["made_with"]["clusters"] = clusters
    path.write_text(json.dumps(manifest))
    with pytest.raises(InvalidInput, match=rf"{path}: made_with\.clusters: does not tell the stages"):
        ResumedRun.load(folder, plan, job)


def test_rounds_count_on_over_sessions(job, made, tmp_path):
    setups, plan = made
    folder = RunFolder(tmp_path)
    weights = make_weights(job, JOB_FILE)
    save(folder, plan, setups, weights, {"c0": 1, "c1": 1}, round_=3)
    first = ResumedRun.load(folder, plan, job)
    save(folder, plan, setups, weights, {"c0": 2, "c1": 2}, round_=2, resumed=first)
    assert ResumedRun.load(folder, plan, job).rounds == 5


def saved_with_state(folder, plan, setups, job):
    """A checkpoint whose optimizer state says which stage it is of."""
    writer = writer_opener(folder, lambda: plan, job, None)(ins.BeginCheckpoint(3, 96, {"c0": 4, "c1": 4}))
    weights = {name: torch.full_like(tensor, 0.5) for name, tensor in make_weights(job, JOB_FILE).items()}
    segments = {segment.ring: segment for setup in setups.values() for segment in setup.segments}
    for ring, segment in segments.items():
        writer.add_segment(ring, {name: weights[name] for name in segment.names})
    for number, setup in enumerate(setups.values()):
        names = [name for segment in setup.segments for name in segment.parameters]
        writer.add_optimizer(
            setup.cluster, setup.index, {(name, "exp_avg"): torch.tensor(float(number)) for name in names}
        )
    writer.commit(parts_of_plan(plan))
    return weights


def test_where_the_latest_is_damaged_the_one_before_is_offered_to_another_plan_too(job, made, tmp_path):
    """Each of the two was made with a plan of its own, and the run is resumed with a third."""
    folder = RunFolder(tmp_path)
    saved_with_state(folder, made[1], made[0], job)
    others, other = setups_of(job, parts=(1, 3))
    saved_with_state(folder, other, others, job)
    latest = folder.checkpoints / "checkpoint-000002"
    (latest / "segment-000.safetensors").unlink()
    _, third = setups_of(job, parts=(3, 1, 2))
    with pytest.raises(InvalidInput) as raised:
        ResumedRun.load(folder, third, job)
    assert str(raised.value) == (
        f"{latest}: the latest checkpoint is damaged: segment-000.safetensors is missing; to resume from"
        f" checkpoint-000001, write that name into {folder.checkpoints / 'latest'}"
    )
    (folder.checkpoints / "latest").write_text("checkpoint-000001")
    assert ResumedRun.load(folder, third, job).moved


def test_a_checkpoint_goes_to_the_stages_of_another_plan(job, made, tmp_path):
    """Two clusters of two stages and one become three of three, one and two."""
    setups, plan = made
    folder = RunFolder(tmp_path)
    weights = saved_with_state(folder, plan, setups, job)
    others, other = setups_of(job, parts=(3, 1, 2))
    resumed = ResumedRun.load(folder, other, job)
    assert resumed.notices[0] == f"resuming {tmp_path} from checkpoint-000001: 96 samples, round 3"
    assert "was made with other stages" in resumed.notices[1]
    assert resumed.updates == {
        cluster.name: round(96 * (share[1] - share[0]) / 12)
        for cluster in other.clusters
        for share in [other.share(cluster.name)]
    }
    states = states_for(others, other, job, resumed)
    for stage, setup in others.items():
        assert all(torch.equal(states[stage].weights[name], weights[name]) for name in needed(setup))
        assert {name for name, _ in states[stage].optimizer} == set(trained(setup))
        for (name, _), tensor in states[stage].optimizer.items():
            own = 2.0 if setup.cluster == "c1" else float(was_in(setups, "c0", name))
            assert tensor.item() == own


def test_the_clusters_of_the_plan_go_on_exactly_where_one_has_come_or_gone_since(job, made, tmp_path):
    setups, plan = made
    folder = RunFolder(tmp_path)
    saved_with_state(folder, plan, setups, job)
    before = ResumedRun.load(folder, plan, job)
    node = replace(plan.fleet.nodes[0], name="new")
    grown = with_nodes(plan, Fleet((node,)), ["new"])
    grown = with_cluster(grown, cluster_at(grown, "joined0", [], ["new"]), "came")
    came = ResumedRun.load(folder, grown, job)
    share = grown.share("joined0")
    assert came.updates == {**before.updates, "joined0": round(96 * (share[1] - share[0]) / 12)}
    assert came.moved
    assert came.unmade == {"joined0": came.updates["joined0"]}, "it has made none of them"
    further = {**before.updates, "joined0": 5}
    save(folder, grown, setups_by(grown, job), {}, further, unmade={"joined0": 3})
    again = ResumedRun.load(folder, grown, job)
    assert (again.updates, again.unmade) == (further, {"joined0": 3})
    assert ResumedRun.load(folder, plan, job).updates == before.updates


def trained(setup):
    return [name for segment in setup.segments for name in segment.parameters]


def was_in(setups, cluster, name):
    """The number of the stage of that cluster that trained the parameter."""
    return next(
        number for number, setup in enumerate(setups.values()) if setup.cluster == cluster and name in trained(setup)
    )


def test_a_checkpoint_made_while_a_cluster_had_fewer_stages_resumes_with_the_plan(job, made, tmp_path):
    """Its cuts alone make fewer segments than the run has, and all of these are in the checkpoint."""
    _, plan = made
    whole = Cluster("c0", 3, (Stage("n00", (0, len(plan.costs.units))),))
    anew = with_cluster(plan, whole, "it does without it")
    weights = make_weights(job, JOB_FILE)
    save(RunFolder(tmp_path), anew, setups_by(anew, job), weights, {"c0": 4, "c1": 4})
    resumed = ResumedRun.load(RunFolder(tmp_path), plan, job)
    assert resumed.moved
    assert resumed.samples == 96
    assert sum(resumed.updates.values()) == 8
    states = states_for(setups_by(plan, job), plan, job, resumed)
    assert all(torch.equal(states["c0.s1"].weights[name], weights[name]) for name in states["c0.s1"].weights)


def test_a_run_trains_on_with_another_plan(tmp_path):
    """Its last anchor and the state of AdamW go from two clusters of two stages and one to two of one and three."""
    first = local_run(tiny_job(), parts=(2, 1))
    losses = first.run().losses["c1"]
    setups, plan = setups_of(tiny_job(), parts=(2, 1))
    folder = RunFolder(tmp_path)
    begun = ins.BeginCheckpoint(5, first.control.samples, first.control.updates)
    writer = writer_opener(folder, lambda: plan, tiny_job(), None)(begun)
    for name, stage in first.stages.items():
        weights, optimizer = saved(stage.rounds)
        for segment in (each for each in stage.setup.segments if each.keeper):
            writer.add_segment(segment.ring, {one: weights[one] for one in segment.names})
        writer.add_optimizer(setups[name].cluster, setups[name].index, optimizer)
    writer.commit(parts_of_plan(plan))
    later = tiny_job(stop={"samples": 480})
    others, other = setups_of(later, parts=(1, 3))
    resumed = ResumedRun.load(folder, other, later)
    control = run_control(other, later, others, 10, 480, resumed)
    again = LocalRun(others, states_for(others, other, later, resumed), control, plan=other)
    result = again.run()
    assert control.samples >= 480
    assert control.accounts.session_samples < 480 - 200, "it went on, and did not begin anew"
    assert result.losses["c1"][0] < losses[0]
    assert again.stages["c1.s2"].machine.version == control.updates["c1"] > resumed.updates["c1"]


def test_a_moved_run_trains_on_and_its_own_checkpoint_is_of_the_new_plan(job, made, tmp_path):
    setups, plan = made
    folder = RunFolder(tmp_path)
    saved_with_state(folder, plan, setups, job)
    others, other = setups_of(job, parts=(3, 1, 2))
    resumed = ResumedRun.load(folder, other, job)
    weights = make_weights(job, JOB_FILE)
    save(folder, other, others, weights, {"c0": 5, "c1": 5, "c2": 5}, resumed=resumed)
    again = ResumedRun.load(folder, other, job)
    assert not again.moved
    assert again.updates == {"c0": 5, "c1": 5, "c2": 5}
    with pytest.raises(InvalidInput, match=r"job\.seed"):
        ResumedRun.load(folder, plan, tiny_job(seed=4))


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
    assert len(ResumedRun.load(folder, plan, tiny_job(averaging={"weighting": "equal", "wire": "int4"})).notices) == 1
    assert "had not sent" in ResumedRun.load(folder, plan, tiny_job(averaging={"wire": "sparse"})).notices[1]
    with pytest.raises(InvalidInput, match=r"job\.averaging\.outer: .*\(none, now nesterov\)"):
        ResumedRun.load(folder, plan, nesterov)


def test_a_checkpoint_from_before_outer_optimizers_had_none(job, made, tmp_path, monkeypatch):
    setups, plan = made
    folder = RunFolder(tmp_path)
    before = {key: value for key, value in made_with(plan, job).items() if key != "job.averaging.outer"}
    monkeypatch.setattr("ravnest.driver.resuming.made_with", lambda plan, job: before)
    save(folder, plan, setups, make_weights(job, JOB_FILE), {"c0": 4, "c1": 7})
    monkeypatch.undo()
    ResumedRun.load(folder, plan, job)
    with pytest.raises(InvalidInput, match=r"job\.averaging\.outer"):
        ResumedRun.load(folder, plan, tiny_job(averaging={"outer": {"nesterov": {}}}))


def test_without_a_checkpoint_there_is_nothing_to_resume(job, made, tmp_path):
    (tmp_path / "checkpoints").mkdir()
    with pytest.raises(InvalidInput, match="no complete checkpoint"):
        ResumedRun.load(RunFolder(tmp_path), made[1], job)


def test_other_data_than_the_checkpoint_s_are_refused_by_what_differs(tmp_path):
    made = data_made_with("240 + 10 samples, abc")
    check_same_as_before(made, "240 + 10 samples, abc", tmp_path)
    with pytest.raises(InvalidInput, match=r"data: .*other data \(240 \+ 10 samples, abc, now 239 \+ 10") as caught:
        check_same_as_before(made, "239 + 10 samples, abd", tmp_path)
    assert caught.value.hint.endswith("--other-data")


def test_a_checkpoint_of_the_earlier_order_is_refused(tmp_path):
    with pytest.raises(InvalidInput, match=r"data\.order: .*another order"):
        check_same_as_before({"job.seed": "0"}, "240 + 10 samples, abc", tmp_path)
