import sys
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch

from ravnest.errors import InvalidInput
from ravnest.job.materials import (
    capture_job,
    check_shares,
    load_data,
    make_model,
    make_weights,
    search_dirs,
    total_samples,
)
from tests.support.local import JOB_FILE, tiny_job

FACTORIES = """
from types import SimpleNamespace
def no_held_out(): return SimpleNamespace(train=[1])
def unsized(): return SimpleNamespace(train=iter([1]), held_out=[1])
def fine(): return SimpleNamespace(train=[1], held_out=[2])
"""


@pytest.fixture
def job_file(tmp_path, monkeypatch):
    monkeypatch.delitem(sys.modules, "factories_for_materials", raising=False)
    monkeypatch.setattr(sys, "path", list(sys.path))
    (tmp_path / "factories_for_materials.py").write_text(FACTORIES)
    return tmp_path / "job.yaml"


def with_data(name):
    return tiny_job(data={"factory": f"factories_for_materials:{name}"})


def test_factories_are_looked_for_beside_the_job_first(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert search_dirs("sub/job.yaml") == (tmp_path / "sub", tmp_path)
    assert search_dirs("job.yaml") == (tmp_path,)


def test_data_needs_no_more_than_two_sets_of_known_length(job_file):
    assert load_data(with_data("fine"), job_file).held_out == [2]


@pytest.mark.parametrize(("name", "part"), [("no_held_out", "held_out"), ("unsized", "train")])
def test_data_without_one_of_them_is_refused_at_its_key(job_file, name, part):
    with pytest.raises(InvalidInput, match=rf"data\.factory: .*`{part}` is missing or has none"):
        load_data(with_data(name), job_file)


def test_a_factory_that_does_not_exist_is_told_with_file_and_key():
    job = tiny_job(model={"factory": "tiny:gtp"})
    with pytest.raises(InvalidInput, match=r"did you mean 'gpt'") as caught:
        make_model(job, JOB_FILE)
    assert (caught.value.path, caught.value.key) == (str(JOB_FILE), "model.factory")


def test_weights_are_the_seed_s_and_leave_the_random_state_alone():
    state = torch.get_rng_state()
    first, again = make_weights(tiny_job(), JOB_FILE), make_weights(tiny_job(), JOB_FILE)
    assert torch.equal(torch.get_rng_state(), state)
    assert all(torch.equal(first[name], again[name]) for name in first)
    other = make_weights(tiny_job(seed=4), JOB_FILE)
    assert not torch.equal(first["head.weight"], other["head.weight"])
    assert make_model(tiny_job(), Path(JOB_FILE)).load_state_dict(first, strict=True)


def test_a_model_for_capture_allocates_nothing():
    assert {parameter.device.type for parameter in make_model(tiny_job(), JOB_FILE, "meta").parameters()} == {"meta"}


@pytest.mark.parametrize(
    ("stop", "expected"),
    [({"epochs": 1.5}, 60), ({"samples": 50}, 50), ({"minutes": 1}, None), ({"epochs": 0.3}, 12)],
)
def test_the_end_is_counted_in_samples(stop, expected):
    assert total_samples(tiny_job(stop=stop), 40, "job.yaml") == expected


@pytest.mark.parametrize(
    ("epochs", "said"),
    [
        (0.0001, r"0\.0001 of 1,797 samples is less than one update \(.* = 4 · 3 = 12\)"),
        (1e308, "is more than can be counted"),
    ],
)
def test_epochs_that_make_no_run_are_refused(epochs, said):
    with pytest.raises(InvalidInput, match=rf"^job\.yaml: stop\.epochs: .*{said}"):
        total_samples(tiny_job(stop={"epochs": epochs}), 1797, "job.yaml")


@pytest.mark.parametrize(
    ("body", "said"),
    [
        ("return 3", "model.factory: 'broken_model:net' returned int, not a torch.nn.Module"),
        ("return 1 / 0", "model.factory: 'broken_model:net' raised ZeroDivisionError"),
        ("return float(torch.ones(1).sum())", "its constructor must not read values"),
        ("return nn.BatchNorm1d(2, momentum=None)", "with momentum=None, which reads its counter: give it a momentum"),
    ],
)
def test_a_model_that_cannot_be_captured_is_told_with_file_and_key(tmp_path, monkeypatch, body, said):
    monkeypatch.delitem(sys.modules, "broken_model", raising=False)
    monkeypatch.setattr(sys, "path", list(sys.path))
    (tmp_path / "broken_model.py").write_text(f"import torch\nfrom torch import nn\ndef net():\n    {body}\n")
    job = tiny_job(model={"factory": "broken_model:net"})
    data = SimpleNamespace(train=[(torch.ones(2), 0)] * 8, held_out=[])
    with pytest.raises(InvalidInput) as caught:
        capture_job(job, tmp_path / "job.yaml", data)
    assert str(caught.value).startswith(f"{tmp_path / 'job.yaml'}: model")
    assert said in str(caught.value)


def test_a_warm_up_that_leaves_no_updates_to_decay_over_is_refused_before_anything_runs(plan):
    schedule = {"name": "cosine", "warmup_updates": 20}
    optimizer = {"name": "sgd", "lr": 0.1, "schedule": schedule}
    job = tiny_job(optimizer=optimizer, micro_batch=4, update_every=2, stop={"samples": 160})
    with pytest.raises(InvalidInput, match="20 warm-up updates leave none to decay over") as caught:
        check_shares(job, JOB_FILE, plan, 10_000)
    assert (caught.value.path, caught.value.key) == (str(JOB_FILE), "optimizer.schedule.warmup_updates")
    check_shares(job.model_copy(update={"stop": job.stop.model_copy(update={"samples": 8000})}), JOB_FILE, plan, 10_000)


def test_a_cluster_with_less_than_a_micro_batch_is_refused(plan):
    with pytest.raises(InvalidInput, match="micro-batch"):
        check_shares(tiny_job(), JOB_FILE, plan, 1)
