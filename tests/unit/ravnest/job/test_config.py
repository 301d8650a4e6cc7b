import doctest
import json
import math
import pickle
from functools import partial
from pathlib import Path

import pytest
from torch.nn import functional

from cluster_planner import NodeData
from ravnest.errors import InvalidInput
from ravnest.job import config
from ravnest.job.config import DataConfig, Job, data_of_node, job_from_mapping, load_job
from tests.support.jobs import tiny
from tests.support.local import tiny_job

LEAST = {"model": {"factory": "model:gpt"}, "data": {"factory": "data:text"}, "stop": {"samples": 1000}}


def fault(**changes):
    with pytest.raises(InvalidInput) as raised:
        job_from_mapping({**LEAST, **changes}, "job.yaml")
    return str(raised.value)


def test_defaults():
    job = job_from_mapping(LEAST)
    assert (job.loss, job.metrics, job.micro_batch, job.update_every) == ("cross_entropy", (), 8, 8)
    assert (job.max_staleness, job.average_every, job.max_lag, job.evaluate_every) == (1, 4096, 1, 20_000)
    assert (job.optimizer.name, job.optimizer.lr, job.optimizer.clip_norm) == ("adamw", 1e-3, None)
    assert (job.seed, job.sample, job.optimizer.schedule.name) == (0, None, "constant")


@pytest.mark.parametrize(
    "changes",
    [
        {},
        {"loss": {"factory": "own:loss", "args": {"weight": 2.5, "names": ["a", None]}}},
        {"metrics": ["accuracy", {"factory": "own:metric"}]},
        {"optimizer": {"name": "NAdam", "lr": 0.1, "betas": [0.99, 0.999], "clip_norm": 1, "foreach": False}},
        {"optimizer": {"schedule": {"name": "cosine", "warmup_updates": 3, "final_lr_ratio": 0}}},
        {"model": {"huggingface": {"model_type": "llama", "hidden_size": 64}}},
        {"stop": {"minutes": 1.5}, "sample": {"factory": "sample:generate"}},
        {"stop": {"epochs": 2}, "max_staleness": 0},
        {"averaging": {"outer": "none", "wire": "bfloat16"}},
        {"averaging": {"weighting": "equal", "outer": {"nesterov": {"lr": 0.5}}, "wire": "int8"}},
        {"schedule": "1f1b"},
        {"wire": {"activations": "bfloat16", "gradients": "int8"}},
        {"initial_weights": "start.safetensors"},
        {"initial_weights": {"path": "folder", "new": ["head.*"], "ignored": ["a", "b"]}},
    ],
)
def test_a_job_survives_being_embedded_in_a_plan(changes):
    job = job_from_mapping({**LEAST, **changes})
    assert job_from_mapping(job.model_dump(mode="json")) == job


@pytest.mark.parametrize(
    ("averaging", "said"),
    [
        (
            {"wire": "int3"},
            "averaging.wire: must be 'float32', 'bfloat16', 'float16', 'int8', 'int4' or 'sparse', not the text 'int3'",
        ),
        ({"weighting": "speed"}, "averaging.weighting: must be 'samples' or 'equal', not the text 'speed'"),
        ({"outer": None}, "averaging.outer: expected none or {nesterov: {lr: 0.7, momentum: 0.9}}"),
        ({"outer": "adam"}, "averaging.outer: expected none or {nesterov"),
        ({"outer": {"nesterov": {"momentum": 1}}}, "averaging.outer.nesterov.momentum: must be below 1, not 1"),
        ({"outer": {"nesterov": {"lr": 0}}}, "averaging.outer.nesterov.lr: must be above 0, not 0"),
        ({"outer": {}}, "averaging.outer: expected none or {nesterov"),
        ({"outer": {"adam": {"lr": 1}}}, "averaging.outer: expected none or {nesterov"),
        ({"outer": {"nesterov": None}}, "averaging.outer.nesterov: must be a mapping, not nothing"),
        ({"wires": "int8"}, "averaging.wires: is not a known key; did you mean 'wire'?"),
    ],
)
def test_faults_of_averaging_name_the_key_and_what_was_expected_in_one_line(averaging, said):
    told = fault(averaging=averaging)
    assert said in told
    assert "\n" not in told


@pytest.mark.parametrize(
    ("wire", "said"),
    [
        (
            {"activations": "int3"},
            "wire.activations: must be 'float32', 'bfloat16', 'float16', 'int8' or 'int4', not the text",
        ),
        ({"activation": "int8"}, "wire.activation: is not a known key; did you mean 'activations'?"),
    ],
)
def test_faults_of_the_wire_do_too(wire, said):
    assert said in fault(wire=wire)


@pytest.mark.parametrize(
    ("value", "said"),
    [
        ({"new": ["a"]}, "initial_weights.path: is required and missing"),
        ({"path": "x", "ignore": []}, "initial_weights.ignore: is not a known key; did you mean 'ignored'?"),
    ],
)
def test_faults_of_initial_weights_do_too(value, said):
    assert said in fault(initial_weights=value)


def test_lists_become_tuples_for_torch():
    assert job_from_mapping({**LEAST, "optimizer": {"betas": [0.8, 0.9]}}).optimizer.arguments == {"betas": (0.8, 0.9)}


def test_a_job_is_frozen():
    job = job_from_mapping(LEAST)
    with pytest.raises(ValueError, match="frozen"):
        job.micro_batch = 3


def test_numbers_as_yaml_1_1_would_read_them():
    job = job_from_mapping({**LEAST, "stop": {"samples": "2e5"}, "optimizer": {"lr": "1e-3", "eps": "1e-8"}})
    assert job.stop.samples == 200_000
    assert (job.optimizer.lr, job.optimizer.arguments) == (1e-3, {"eps": 1e-8})


def test_a_synchronous_schedule_implies_no_staleness_and_refuses_any():
    assert job_from_mapping(LEAST).schedule == "async"
    for schedule in ("1f1b", "gpipe"):
        assert job_from_mapping({**LEAST, "schedule": schedule}).max_staleness == 0
        assert job_from_mapping({**LEAST, "schedule": schedule, "max_staleness": 0}).schedule == schedule
        assert f"max_staleness: schedule {schedule} is synchronous" in fault(schedule=schedule, max_staleness=1)
    assert "schedule: " in fault(schedule="interleaved")
    assert "schedule: " in fault(schedule=["gpipe"])


@pytest.mark.parametrize(
    ("stop", "said"),
    [
        ({}, "exactly one of samples, epochs or minutes, not none"),
        ({"samples": 1000, "minutes": 2}, "not samples and minutes"),
        ({"samples": 0}, "stop.samples: must be above 0"),
        ({"samples": 10}, "less than one update (micro_batch · update_every = 8 · 8 = 64)"),
        ({"samples": 1000.5}, "stop.samples"),
        ({"epochs": -1}, "stop.epochs: must be above 0"),
        ({"minutes": math.inf}, "stop.minutes"),
        ({"minutes": math.nan}, "stop.minutes"),
        ({"minutes": True}, "stop.minutes: expected a number, not true or false"),
        ({"hours": 1}, "stop.hours: is not a known key"),
    ],
)
def test_stop(stop, said):
    assert said in fault(stop=stop)


@pytest.mark.parametrize("changes", [{"update_every": 4097}, {"max_staleness": 2**61}, {"update_every": 2**62}])
def test_more_micro_batches_on_their_way_than_a_plan_can_follow_are_refused(changes):
    said = fault(**changes, stop={"minutes": 1})
    assert said.startswith("job.yaml: update_every: (max_staleness + 1) · update_every must be at most 8,192, not ")
    job_from_mapping({**LEAST, "update_every": 4096, "stop": {"minutes": 1}})


@pytest.mark.parametrize("key", ["micro_batch", "update_every", "average_every", "max_lag", "evaluate_every"])
@pytest.mark.parametrize("value", [0, -1, 1.5, True, "many", None, math.nan])
def test_counts_are_positive_whole_numbers(key, value):
    assert fault(**{key: value}).startswith(f"job.yaml: {key}: ")


@pytest.mark.parametrize(
    ("optimizer", "said"),
    [
        ({"bata": 1}, "job.yaml: optimizer.bata: AdamW has no such argument; did you mean `betas`?"),
        ({"learning_rate": 1}, "optimizer.learning_rate: AdamW has no such argument"),
        ({"name": "adamv"}, "optimizer.name: torch.optim has no optimizer 'adamv'; did you mean 'adam'?"),
        ({"name": "LBFGS"}, "optimizer.name: LBFGS cannot be used: it calls the model again"),
        ({"name": "sparseadam"}, "SparseAdam cannot be used: it takes sparse gradients"),
        ({"name": "optimizer"}, "torch.optim has no optimizer 'optimizer'"),
        ({"betas": [0.9]}, "optimizer.betas: expected 2 numbers"),
        ({"betas": [0.9, "x"]}, "optimizer.betas: expected a number, not 'x'"),
        ({"betas": [1.5, 0.9]}, "torch.optim.AdamW refuses: Invalid beta parameter at index 0: 1.5"),
        ({"eps": math.nan}, "optimizer.eps: expected a finite number"),
        ({"amsgrad": 1}, "optimizer.amsgrad: expected true or false"),
        ({"differentiable": True}, "optimizer.differentiable: AdamW has no such argument"),
        ({"lr": 0}, "optimizer.lr: must be above 0"),
        ({"lr": math.inf}, "optimizer.lr"),
        ({"clip_norm": -1}, "optimizer.clip_norm: must be above 0"),
        ({"schedule": {"name": "cosin"}}, "optimizer.schedule.name: must be 'constant', 'linear' or 'cosine'"),
        ({"schedule": {"final_lr_ratio": 0.5}}, "no meaning for a constant schedule"),
        ({"schedule": {"name": "linear", "final_lr_ratio": 2}}, "optimizer.schedule.final_lr_ratio"),
        ("adamw", "optimizer"),
    ],
)
def test_optimizer(optimizer, said):
    assert said in fault(optimizer=optimizer)


def test_all_mistakes_of_an_optimizer_are_told_at_once():
    said = fault(optimizer={"bata": 1, "amsgrad": "yes"})
    assert [line.split(": ")[1] for line in said.splitlines()] == ["optimizer.bata", "optimizer.amsgrad"]


def test_a_decaying_schedule_needs_a_known_end():
    optimizer = {"schedule": {"name": "linear"}}
    assert "optimizer.schedule.name: linear needs a known end" in fault(stop={"minutes": 1}, optimizer=optimizer)
    assert job_from_mapping({**LEAST, "stop": {"epochs": 1}, "optimizer": optimizer}).stop.epochs == 1


def _narrowed(**changes):
    return {"factory": "a:b", "bottlenecks": [{"after": "c", "features": 8, "width": 2, **changes}]}


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"loss": "cross_entopy"}, "loss: no loss is called 'cross_entopy'; did you mean 'cross_entropy'?"),
        ({"loss": "own:loss"}, "a factory is written as {factory: own:loss}"),
        ({"loss": {"factory": "own.loss"}}, "loss.factory: expected package.module:attribute, not 'own.loss'"),
        ({"loss": 3}, "loss: expected the name of a loss"),
        ({"metrics": ["acuracy"]}, "metrics[0]: no metric is called 'acuracy'; did you mean 'accuracy'?"),
        ({"metrics": "accuracy"}, "metrics: must be a list"),
        ({"untied": "exact"}, "job.yaml: untied: is not a known key"),
        ({"tied": "sometimes"}, "tied: must be 'exact' or 'averaged'"),
        ({"lost": 1}, "did you mean 'loss'?"),
        ({"model": {}}, "model: give either factory (with its args) or huggingface"),
        ({"model": {"factory": "a:b", "huggingface": {"model_type": "llama"}}}, "give either factory"),
        ({"model": {"huggingface": {"hidden_size": 3}}}, "huggingface needs a model_type"),
        ({"model": {"huggingface": {"model_type": "llama"}, "args": {"a": 1}}}, "args belong to a factory"),
        ({"model": _narrowed(width=8)}, "model.bottlenecks[0]: width 8 is no less than the 8 features"),
        ({"model": _narrowed(dim=0)}, "model.bottlenecks[0]: dim 0 is the samples of a batch"),
        ({"model": _narrowed(width=0)}, "model.bottlenecks[0].width: must be above 0, not 0"),
        ({"data": {"factory": "a b:c"}}, "data.factory: expected package.module:attribute"),
        ({"seed": -1}, "seed: must be 0 or more"),
        ({"max_staleness": -1}, "max_staleness: must be 0 or more"),
    ],
)
def test_other_faults(changes, said):
    assert said in fault(**changes)


def test_a_missing_section_is_named():
    with pytest.raises(InvalidInput, match="stop: is required and missing"):
        job_from_mapping({key: value for key, value in LEAST.items() if key != "stop"})


def test_load_job(tmp_path):
    path = tmp_path / "job.yaml"
    path.write_text(
        "model: {factory: model:gpt, args: {layers: 2}}\ndata: {factory: data:text}\n"
        "optimizer: {name: sgd, lr: 1e-2, momentum: 0.9}\nstop: {samples: 6400}\n"
    )
    job = load_job(path)
    assert isinstance(job, Job)
    assert job.data == DataConfig(factory="data:text")
    assert job.optimizer.arguments == {"momentum": 0.9}


def test_load_job_names_the_file_and_every_fault(tmp_path):
    path = tmp_path / "job.yaml"
    path.write_text("model: {factory: model:gpt}\ndata: {factory: data:text}\nstop: {samples: 0}\nlos: mse\n")
    with pytest.raises(InvalidInput) as raised:
        load_job(path)
    first, second = str(raised.value).splitlines()
    assert first == f"{path}: stop.samples: must be above 0, not 0"
    assert second == f"{path}: los: is not a known key; did you mean 'loss'?"


def test_the_planner_may_be_left_to_choose_the_staleness():
    job = job_from_mapping({**LEAST, "max_staleness": "auto"})
    assert job.max_staleness == "auto"
    assert job_from_mapping(job.model_dump(mode="json")) == job
    with pytest.raises(InvalidInput, match="max_staleness: is auto"):
        _ = job.staleness_bound
    assert job_from_mapping({**LEAST, "max_staleness": "auto", "schedule": "1f1b"}).max_staleness == 0
    assert "max_staleness: " in (said := fault(max_staleness="soon"))
    assert "auto" in said


def test_a_fault_in_a_plan_s_job_is_told_at_its_key_there():
    with pytest.raises(InvalidInput, match=r"^plan\.yaml: job\.micro_batch: "):
        job_from_mapping({**LEAST, "micro_batch": 0}, "plan.yaml", under="job.")


@pytest.mark.parametrize("key", ["seed", "micro_batch", "average_every"])
def test_counts_are_such_as_a_machine_can_count(key):
    assert fault(**{key: 2**64}).startswith(f"job.yaml: {key}: ")


def test_a_nodes_own_arguments_go_over_the_jobs_and_its_own_factory_stands_alone() -> None:
    job = tiny_job(data={"factory": "tiny:words", "args": {"path": "a", "context": 8}})
    assert data_of_node(job, None) is job
    assert data_of_node(job, NodeData(None, {"path": "b"})).data.args == {"path": "b", "context": 8}
    other = data_of_node(job, NodeData("mine:local", {"path": "b"})).data
    assert (other.factory, other.args) == ("mine:local", {"path": "b"})
    assert job.data.args["path"] == "a"


def test_a_job_made_in_python_is_the_one_that_a_file_describes() -> None:
    made = Job(
        model=partial(tiny.gpt, layers=2),
        data=tiny.words,
        loss=functional.mse_loss,
        metrics=["accuracy", functional.l1_loss],
        stop={"samples": 1000},
        micro_batch=4,
    )
    assert made.file == Path(tiny.__file__).parents[2]
    written = {
        "model": {"factory": "tests.support.jobs.tiny:gpt", "args": {"layers": 2}},
        "data": {"factory": "tests.support.jobs.tiny:words"},
        "loss": {"function": "torch.nn.functional:mse_loss"},
        "metrics": ["accuracy", {"function": "torch.nn.functional:l1_loss"}],
        "stop": {"samples": 1000},
        "micro_batch": 4,
    }
    assert made == job_from_mapping(written)
    assert [key for key, _ in made.references] == ["data.factory", "model.factory", "loss", "metrics"]


def test_mistakes_of_a_job_made_in_python_are_an_invalid_input() -> None:
    with pytest.raises(InvalidInput, match="micro_batsh: is not a known key; did you mean 'micro_batch'"):
        Job(**LEAST, micro_batsh=3)
    with pytest.raises(InvalidInput, match=r"model\.args\.\w+") as raised:
        Job(model=partial(tiny.gpt, layers=object()), data=tiny.words, stop={"samples": 1000})
    assert "\n" not in str(raised.value)


def test_a_job_is_equal_to_another_with_the_same_keys_wherever_it_was_written(tmp_path: Path) -> None:
    path = tmp_path / "job.yaml"
    path.write_text(json.dumps(LEAST))
    loaded = load_job(path)
    assert loaded == Job(**LEAST) != Job(**{**LEAST, "stop": {"samples": 2000}})
    assert (loaded.file, Job(**LEAST).file) == (path, Path.cwd() / "Job")
    copy = pickle.loads(pickle.dumps(loaded))
    assert (copy, copy.file) == (loaded, loaded.file)


def test_the_examples_of_the_docstrings_are_true() -> None:
    assert doctest.testmod(config).failed == 0
