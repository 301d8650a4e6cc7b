import sys
from pathlib import Path

import pytest
import torch

from ravnest.errors import InvalidInput
from ravnest.materials import load_data, make_model, make_weights, search_dirs
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
