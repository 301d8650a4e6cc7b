import sys
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch

from ravnest.errors import InvalidInput
from ravnest.job.initial_weights import make_weights
from ravnest.job.materials import (
    baselines_of,
    capture_job,
    check_shares,
    load_data,
    make_model,
    search_dirs,
    total_samples,
)
from ravnest.training.batches import SampleSet
from tests.support.local import JOB_FILE, tiny_job

FACTORIES = """
from types import SimpleNamespace
def no_held_out(): return SimpleNamespace(train=[1])
def unsized(): return SimpleNamespace(train=iter([1]), held_out=[1])
def fine(): return SimpleNamespace(train=[1], held_out=[2])
def drawn():
    import random, numpy, torch
    train = list(zip(torch.randn(4), numpy.random.rand(4), [random.random() for _ in range(4)]))
    return SimpleNamespace(train=train, held_out=train)
def odd_baselines(): return SimpleNamespace(train=[1], held_out=[2], baselines={"guessing": "much"})
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
    assert load_data(with_data("fine"), job_file).held_out.dataset == [2]


def test_a_factory_that_draws_gives_the_same_data_in_every_process(job_file):
    def train(job):
        return [[float(number) for number in row] for row in load_data(job, job_file).given.train]

    before = torch.get_rng_state()
    first = train(with_data("drawn"))
    torch.rand(3)
    assert train(with_data("drawn")) == first
    assert train(with_data("drawn").model_copy(update={"seed": 1})) != first
    torch.set_rng_state(before)
    train(with_data("drawn"))
    assert torch.equal(torch.get_rng_state(), before)


def test_baselines_that_are_no_numbers_are_refused_before_training(job_file):
    with pytest.raises(InvalidInput, match="`baselines` raised ValueError"):
        load_data(with_data("odd_baselines"), job_file)


@pytest.mark.parametrize(
    ("name", "lack"),
    [("no_held_out", "`held_out` is missing"), ("unsized", "`train` is a list_iterator.*no num_shards")],
)
def test_data_without_one_of_them_is_refused_at_its_key(job_file, name, lack):
    with pytest.raises(InvalidInput, match=rf"data\.factory: .*{lack}"):
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
        ("return float(torch.ones(1).sum())", "returned float, not a torch.nn.Module"),
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
        check_shares(job, JOB_FILE, plan, SampleSet(range(10_000)))
    assert (caught.value.path, caught.value.key) == (str(JOB_FILE), "optimizer.schedule.warmup_updates")
    shorter = job.model_copy(update={"stop": job.stop.model_copy(update={"samples": 8000})})
    check_shares(shorter, JOB_FILE, plan, SampleSet(range(10_000)))


def test_a_constant_rate_may_end_in_its_warm_up_since_a_run_that_goes_on_by_another_plan_is_prepared_so_too(plan):
    optimizer = {"name": "sgd", "lr": 0.1, "schedule": {"name": "constant", "warmup_updates": 20}}
    job = tiny_job(optimizer=optimizer, micro_batch=4, update_every=2, stop={"samples": 8})
    check_shares(job, JOB_FILE, plan, SampleSet(range(10_000)))


def test_a_cluster_with_less_than_a_micro_batch_is_refused(plan):
    with pytest.raises(InvalidInput, match="micro-batch"):
        check_shares(tiny_job(), JOB_FILE, plan, SampleSet(range(1)))


LOADERS = """
import random
from types import SimpleNamespace
import torch
from torch.utils.data import DataLoader, IterableDataset, WeightedRandomSampler

ROWS = [(torch.ones(2) * i, i) for i in range(12)]

class Rows(IterableDataset):
    def __iter__(self):
        return iter(ROWS)

class Stream(Rows):
    num_shards, at = 2, 0

    def shard(self, num_shards, index):
        return Stream()

    def state_dict(self):
        return {}

    def load_state_dict(self, state_dict):
        pass

def joined(samples):
    return torch.stack([x for x, _ in samples]), torch.tensor([-y for _, y in samples])

def loaders(**changes):
    loader = DataLoader(ROWS, **{"batch_size": 4, "shuffle": True, "collate_fn": joined, "num_workers": 2, **changes})
    return {"train": loader, "held_out": DataLoader(ROWS, 4), "baselines": {"guessing": 1.5}}

def streaming():
    return {"train": DataLoader(Stream(), 4, collate_fn=joined, num_workers=1), "held_out": ROWS}

def plain():
    return {"train": Rows(), "held_out": ROWS}

def streamed_twice():
    return {"train": Stream(), "held_out": Stream()}

def weighted():
    return loaders(shuffle=None, sampler=WeightedRandomSampler([1.0] * 12, 12))

def unbatched():
    return loaders(batch_size=None, shuffle=None)

def replacing():
    return loaders(shuffle=None, sampler=torch.utils.data.RandomSampler(ROWS, replacement=True))

def own_batches():
    batches = [[0, 1], [2, 3]]
    return {"train": DataLoader(ROWS, batch_sampler=batches), "held_out": ROWS}

def initialised():
    return loaders(worker_init_fn=print)

def both():
    return SimpleNamespace(train=ROWS, held_out=ROWS, collate_fn=joined, workers=3)
"""


@pytest.fixture
def loaders_file(tmp_path, monkeypatch):
    monkeypatch.delitem(sys.modules, "loaders_for_materials", raising=False)
    monkeypatch.setattr(sys, "path", list(sys.path))
    (tmp_path / "loaders_for_materials.py").write_text(LOADERS)
    return tmp_path / "job.yaml"


def loaded(file, name, **changes):
    return load_data(tiny_job(data={"factory": f"loaders_for_materials:{name}", **changes}), file)


def test_of_a_data_loader_its_dataset_collate_function_and_workers_are_taken(loaders_file):
    data = loaded(loaders_file, "loaders")
    assert (len(data.train), data.workers, baselines_of(data)) == (12, 2, {"guessing": 1.5})
    assert data.train.batch([1, 2])[1].tolist() == [-1, -2]
    assert data.held_out.batch([1, 2])[1].tolist() == [1, 2]


def test_a_stream_is_read_by_number_if_it_says_how_it_is_divided(loaders_file):
    data = loaded(loaders_file, "streaming", workers=None)
    assert data.workers == 1
    assert data.train.batch([0, 2, 4, 26])[1].tolist() == [0, -1, -2, -1]  # of one shard, which begins again
    with pytest.raises(InvalidInput, match="`train` is a Rows, whose samples have no numbers, and it has no num_"):
        loaded(loaders_file, "plain")
    with pytest.raises(InvalidInput, match="`held_out` is a Stream") as caught:
        loaded(loaders_file, "streamed_twice")
    assert "islice" in caught.value.hint
    with pytest.raises(InvalidInput, match="how many samples an epoch") as caught:
        total_samples(tiny_job(stop={"epochs": 1}), len(data.train), loaders_file)
    assert caught.value.key == "stop.epochs"


def test_the_job_s_keys_count_before_those_of_the_data(loaders_file):
    data = loaded(loaders_file, "both")
    assert (data.workers, data.held_out.batch([3])[1].tolist()) == (3, [-3])
    data = loaded(loaders_file, "loaders", workers=0, collate_fn="torch.utils.data:default_collate")
    assert (data.workers, data.train.batch([3])[1].tolist()) == (0, [3])


@pytest.mark.parametrize(
    ("name", "what"),
    [
        ("weighted", "a sampler of its own .WeightedRandomSampler."),
        ("replacing", "a sampler of its own .RandomSampler."),
        ("unbatched", "batch_size=None"),
        ("own_batches", "a batch sampler of its own"),
        ("initialised", "a worker_init_fn"),
    ],
)
def test_a_data_loader_that_a_run_cannot_keep_to_is_refused(loaders_file, name, what):
    with pytest.raises(InvalidInput, match=f"`train` is a DataLoader (of|with) {what}.*: a run cannot keep") as caught:
        loaded(loaders_file, name)
    assert (caught.value.key, caught.value.path) == ("data.factory", str(loaders_file))
    assert caught.value.hint
