"""Models that cannot be built without values are built with them, and weights that a factory loads are kept."""

import sys
from collections.abc import Callable
from pathlib import Path

import pytest
import torch

from ravnest.errors import InvalidInput
from ravnest.job.config import Job
from ravnest.job.initial_weights import make_buffers, make_weights
from ravnest.job.materials import capture_job, load_data, make_model
from ravnest.splitting.model_source import noting_loaded_weights, pretrained_sources
from tests.support.local import job_in

CODE = """
from types import SimpleNamespace
import torch
from torch import nn
from torch.utils.data import TensorDataset

class Layers(nn.Module):
    def __init__(self):
        super().__init__()
        self.a, self.b = nn.Linear(4, 4), nn.Linear(4, 4)
        self.register_buffer("scale", torch.full((4,), 3.0))
    def forward(self, x):
        return self.b(self.a(x)) * self.scale

class Rates(Layers):
    def __init__(self):
        super().__init__()
        self.rates = [rate.item() for rate in torch.linspace(0, 0.5, 3)]
        self.mean = float(self.a.weight.mean())
    def forward(self, x):
        return super().forward(x) * self.rates[1]

class Noise(Rates):
    def __init__(self):
        super().__init__()
        self.noise = [torch.randn(4)]
    def forward(self, x):
        return super().forward(x) + self.noise[0]

class Hidden(Layers):
    def __init__(self):
        super().__init__()
        self.tables = [torch.arange(4.0)]
    def forward(self, x):
        return super().forward(x) + self.tables[0]

class Lazy(Layers):
    def __init__(self):
        super().__init__()
        self.b = nn.LazyLinear(4)

def loading(assign):
    model = Layers()
    state = {"a.weight": torch.full((4, 4), 5.0, device="cpu"), "scale": torch.full((4,), 7.0, device="cpu")}
    model.load_state_dict(state, strict=False, assign=assign)
    return model

def pretrained(path):
    import transformers
    return transformers.LlamaForCausalLM.from_pretrained(path)

def failing():
    raise ValueError("mine")

def flat():
    part = TensorDataset(torch.randn(24, 4), torch.zeros(24, dtype=torch.long))
    return SimpleNamespace(train=part, held_out=part)
"""


@pytest.fixture
def job(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., Job]:
    monkeypatch.delitem(sys.modules, "code_with_values", raising=False)
    monkeypatch.setattr(sys, "path", list(sys.path))
    (tmp_path / "code_with_values.py").write_text(CODE)

    def made(factory: str, **args: object) -> Job:
        return job_in(
            tmp_path,
            model={"factory": f"code_with_values:{factory}", "args": args},
            data={"factory": "code_with_values:flat"},
            micro_batch=4,
            optimizer={"name": "sgd", "lr": 0.1},
            stop={"samples": 96},
        )

    return made


@pytest.mark.parametrize("name", ["Rates", "Noise", "Hidden"])
def test_a_model_that_needs_values_is_captured_with_them_and_says_so(job: Callable[..., Job], name: str) -> None:
    made = job(name)
    data = load_data(made, made.file)
    captured = capture_job(made, made.file, data)
    assert "meta" in captured.needs_values
    assert len(captured.units) == 2
    torch.manual_seed(99)
    assert capture_job(made, made.file, data).costs.fingerprint == captured.costs.fingerprint
    assert set(make_buffers(made, made.file)) == {"scale"}


def test_a_model_that_needs_no_values_is_captured_without(job: Callable[..., Job]) -> None:
    made = job("Layers")
    assert capture_job(made, made.file, load_data(made, made.file)).needs_values == ""
    assert make_model(made, made.file, "meta").a.weight.is_meta


@pytest.mark.parametrize("assign", [False, True])
def test_weights_that_a_factory_loads_are_what_training_starts_from(job: Callable[..., Job], assign: bool) -> None:
    made = job("loading", assign=assign)
    captured = capture_job(made, made.file, load_data(made, made.file))
    assert len(captured.units) == 2
    weights = make_weights(made, made.file)
    assert (float(weights["a.weight"].mean()), float(weights["scale"][0])) == (5.0, 7.0)
    assert float(make_buffers(made, made.file)["scale"][0]) == 7.0
    with noting_loaded_weights() as noted:
        make_model(made, made.file)
    assert noted.sources == ["Layers.load_state_dict"]


def test_a_pretrained_model_in_a_factory_keeps_its_weights(job: Callable[..., Job], tmp_path: Path) -> None:
    transformers = pytest.importorskip("transformers")
    config = transformers.LlamaConfig(
        vocab_size=11,
        hidden_size=8,
        intermediate_size=8,
        num_hidden_layers=1,
        num_attention_heads=2,
        num_key_value_heads=1,
    )
    saved = transformers.LlamaForCausalLM(config)
    saved.save_pretrained(tmp_path / "llama")
    made = job("pretrained", path=str(tmp_path / "llama"))
    weights = make_weights(made, made.file)
    assert all(torch.equal(weights[name], tensor) for name, tensor in saved.state_dict().items())
    assert pretrained_sources(make_model(made, made.file)) == [str(tmp_path / "llama")]
    named = set(make_model(made, made.file, "meta").state_dict())
    assert named == set(saved.state_dict())


def test_a_layer_without_sizes_is_refused_by_name(job: Callable[..., Job]) -> None:
    made = job("Lazy")
    with pytest.raises(InvalidInput, match=r"job\.yaml: model\.factory: 'b' is a LazyLinear, .*in_features"):
        capture_job(made, made.file, load_data(made, made.file))


def test_a_factory_that_fails_with_values_too_is_told_as_its_own_mistake(job: Callable[..., Job]) -> None:
    made = job("failing")
    with pytest.raises(InvalidInput, match=r"model\.factory: 'code_with_values:failing' raised ValueError: mine"):
        make_model(made, made.file, "meta")
