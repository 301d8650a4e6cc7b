import random
import sys

import pytest
import torch
from torch import Tensor
from torch._subclasses.fake_tensor import FakeTensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from ravnest.driver.preparation import hand_out, initial_weights, needed, sent, states_for
from ravnest.job.initial_weights import WeightsFromSeed, make_buffers, make_weights
from ravnest.job.materials import capture_job, load_data, make_loss
from ravnest.stage import messages as m
from ravnest.stage.process import make_initial
from ravnest.training.loss_parameters import loss_weights
from ring_allreduce.transport import InProcessNetwork
from tests.support.local import JOB_FILE, captured_job, job_in, setups_of, tiny_job


class _Taken(TorchDispatchMode):
    """Adds up the bytes of all tensors with values that operators return."""

    def __init__(self):
        super().__init__()
        self.bytes = 0

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        returned = func(*args, **(kwargs or {}))
        for leaf in tree_leaves(returned):
            if isinstance(leaf, Tensor) and not isinstance(leaf, FakeTensor) and leaf.device.type == "cpu":
                self.bytes += leaf.untyped_storage().nbytes()
        return returned


class _Link:
    """Takes what is sent to the stages, and counts the bytes of tensors."""

    def __init__(self):
        self.bytes, self.messages = 0, []

    def forget(self, peer):
        """Nothing has been sent before."""

    def put(self, peer, message, tensors):
        self.bytes += sum(tensor.nbytes for tensor in tensors)

    def send(self, peer, lane, message):
        self.messages.append(message)


def gpt(width):
    return tiny_job(model={"factory": "tiny:gpt", "args": {"width": width}})


def test_the_driver_makes_and_sends_nothing_that_grows_with_the_model():
    spent = []
    for width in (16, 128):
        job = gpt(width)
        captured = captured_job(job)
        link = _Link()
        with _Taken() as taken:
            initial = initial_weights(job, JOB_FILE, captured)
            setups, plan = setups_of(job, parts=(2, 1), initial=initial)
            hand_out(link, link, setups.values(), states_for(setups, plan, job, None, initial))
        assert link.bytes == 0
        assert [message.tensors for message in link.messages] == [0, 0, 0]
        spent.append((taken.bytes, sum(spec.size_bytes for spec in captured.span(0, len(captured.units)).parameters)))
    (small, _), (large, model_bytes) = spent
    assert model_bytes > 8 * small
    assert large == small


def test_stages_make_what_the_job_s_seed_gives():
    job = tiny_job()
    initial = WeightsFromSeed(job, JOB_FILE)
    expected = make_weights(job, JOB_FILE)
    setups, _ = setups_of(job, parts=(3, 1), initial=initial)
    network = InProcessNetwork()
    driver = network.endpoint(m.DRIVER, m.codec())
    endpoints = {name: network.endpoint(name, m.codec()) for name in setups}
    network.connect_all()
    for name, setup in setups.items():
        made = make_initial(setup, endpoints[name], now=iter(range(1000)).__next__)
        assert sorted(made) == sorted(needed(setup))
        assert sent(setup) == []
        assert all(torch.equal(made[one], expected[one]) for one in made)
    told = [each.message for each in driver.poll(0.0)]
    assert told
    assert all(isinstance(each, m.Alive) for each in told)


def test_single_weights_are_those_of_all():
    job = tiny_job()
    weights, expected = WeightsFromSeed(job, JOB_FILE), make_weights(job, JOB_FILE)
    assert set(weights) == set(expected)
    assert len(weights) == len(expected)
    assert all(torch.equal(weights[name], expected[name]) for name in expected)
    assert weights.whole_because == ""
    with pytest.raises(KeyError):
        weights["nothing"]


def written(folder, monkeypatch, name, code):
    """A module of that name is found beside the job."""
    monkeypatch.setattr(sys, "path", list(sys.path))
    monkeypatch.delitem(sys.modules, name, raising=False)
    (folder / f"{name}.py").write_text(code)


def job_of_code(folder, factory, seed=0, **more):
    module = factory.partition(":")[0]
    return job_in(
        folder,
        model={"factory": factory},
        data={"factory": f"{module}:flat"},
        micro_batch=4,
        optimizer={"name": "sgd", "lr": 0.1},
        stop={"samples": 96},
        seed=seed,
        **more,
    )


CODE = """
import torch
from torch import nn
from torch.utils.data import TensorDataset
from types import SimpleNamespace

def loading():
    model = nn.Linear(4, 4)
    model.load_state_dict(torch.load(__file__.replace("loading_code.py", "stored.pt")))
    return model

def flat():
    part = TensorDataset(torch.randn(24, 4), torch.zeros(24, dtype=torch.long))
    return SimpleNamespace(train=part, held_out=part)
"""


def test_what_cannot_be_recorded_is_made_whole_and_says_why(tmp_path, monkeypatch):
    written(tmp_path, monkeypatch, "loading_code", CODE)
    stored = {"weight": torch.full((4, 4), 5.0), "bias": torch.zeros(4)}
    torch.save(stored, tmp_path / "stored.pt")
    job = job_of_code(tmp_path, "loading_code:loading")
    weights = WeightsFromSeed(job, job.file)
    assert "file" in weights.whole_because
    assert weights.only(["weight"]) == ()
    assert torch.equal(weights["weight"], stored["weight"])
    assert weights.all().keys() == stored.keys()
    assert make_buffers(job, job.file) == {}


DRAWING = """
import random
from types import SimpleNamespace

import numpy as np
import torch
from torch import nn
from torch.utils.data import TensorDataset


class Drawing(nn.Module):
    def __init__(self):
        super().__init__()
        self.weight = nn.Parameter(torch.tensor(np.random.rand(4, 4), dtype=torch.float32))
        self.register_buffer("order", torch.tensor(random.sample(range(4), 4)), persistent=False)
        self.scale = random.random()

    def forward(self, x):
        return x[:, self.order] @ self.weight * self.scale


class Scaled(nn.Module):
    def __init__(self):
        super().__init__()
        self.scale = nn.Parameter(torch.tensor(np.random.rand(), dtype=torch.float32))

    def forward(self, output, target):
        return (output * self.scale).sum()


def flat():
    part = TensorDataset(torch.randn(24, 4), torch.zeros(24, dtype=torch.long))
    return SimpleNamespace(train=part, held_out=part)
"""


def test_what_a_constructor_draws_from_numpy_or_python_is_the_seed_s_in_every_process(tmp_path, monkeypatch):
    written(tmp_path, monkeypatch, "drawing_code", DRAWING)
    job, other_job = (job_of_code(tmp_path, "drawing_code:Drawing", seed) for seed in (3, 4))
    one, again, other = (make_weights(each, each.file) for each in (job, job, other_job))
    assert all(torch.equal(one[name], again[name]) for name in one)
    assert not torch.equal(one["weight"], other["weight"])
    assert torch.equal(make_buffers(job, job.file)["order"], one["order"])
    state = random.getstate()
    costs = [capture_job(job, job.file, load_data(job, job.file)).costs for _ in range(2)]
    assert costs[0].fingerprint == costs[1].fingerprint
    assert random.getstate() == state
    job = job_of_code(tmp_path, "drawing_code:Drawing", loss={"factory": "drawing_code:Scaled"})
    one, again = (loss_weights(make_loss(job, job.file)) for _ in range(2))
    assert len(one) == 1
    assert all(torch.equal(one[name], again[name]) for name in one)


def test_a_loss_s_weights_are_made_by_the_last_stage():
    loss = {"factory": "measured:ArcFace"}
    job = tiny_job(model={"factory": "measured:embedder"}, data={"factory": "tiny:images"}, loss=loss)
    setups, _ = setups_of(job, parts=(2,), initial=WeightsFromSeed(job, JOB_FILE))
    made = setups["c0.s1"].initial[-1].make(job.seed)
    assert made.keys() == {"loss.directions", "loss.norm"}
    values = loss_weights(make_loss(job, JOB_FILE))
    assert all(torch.equal(made[name], values[name]) for name in made)
