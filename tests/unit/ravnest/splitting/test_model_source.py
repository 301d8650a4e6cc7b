"""Models from factories and from Hugging Face configurations, and their initial weights."""

import builtins
import warnings
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn

from ravnest.errors import InvalidInput
from ravnest.splitting import build_model, capture, initial_weights, verify
from ravnest.splitting.model_source import aliases, tied_names, twin_of
from tests.unit.ravnest.splitting.models import Case as ModelCase
from tests.unit.ravnest.splitting.models import build, run_eager, run_stages, without_buffers

LLAMA = {
    "model_type": "llama",
    "vocab_size": 50,
    "hidden_size": 16,
    "intermediate_size": 24,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 32,
    "tie_word_embeddings": False,
}


def no_factory(spec: str) -> Callable[..., Any]:
    raise AssertionError(spec)


def make(width: int, depth: int = 1) -> nn.Module:
    return nn.Sequential(*(nn.Linear(width, width) for _ in range(depth)))


def test_a_factory_is_resolved_and_called_with_its_arguments_on_the_device() -> None:
    config = {"factory": "models:make", "args": {"width": 3, "depth": 2}, "huggingface": None}
    model = build_model(config, "meta", resolve={"models:make": make}.__getitem__)
    assert len(list(model.parameters())) == 4
    assert {p.device.type for p in model.parameters()} == {"meta"}


@pytest.mark.parametrize(
    ("config", "result", "message"),
    [
        ({}, make, "model: needs either"),
        ({"factory": "a", "huggingface": LLAMA}, make, "model: needs either"),
        ({"factory": "a", "args": {"wide": 3}}, make, r"model.args: 'a' does not take these arguments: .*wide"),
        ({"factory": "a"}, dict, "model.factory: 'a' returned dict, not a torch.nn.Module"),
    ],
)
def test_refuses_a_wrong_configuration(config: dict[str, object], result: Callable[..., Any], message: str) -> None:
    with pytest.raises(InvalidInput, match=message):
        build_model(config, "cpu", resolve=lambda spec: result)


def test_initial_weights_depend_on_the_seed_alone_and_leave_random_numbers_alone() -> None:
    torch.manual_seed(5)
    expected = torch.rand(1)
    torch.manual_seed(5)
    first, second, other = (initial_weights(lambda: make(3), seed) for seed in (1, 1, 2))
    assert torch.equal(torch.rand(1), expected)
    assert all(torch.equal(first[name], second[name]) for name in first)
    assert not torch.equal(first["0.weight"], other["0.weight"])
    torch.manual_seed(1)
    assert torch.equal(first["0.weight"], make(3)[0].weight)


def test_initial_weights_hold_what_no_state_dict_does() -> None:
    class Hidden(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.inner = nn.Module()
            self.inner.table = torch.ones(2)
            self.register_buffer("rotary", torch.ones(3), persistent=False)

    assert initial_weights(Hidden, 0).keys() == {"inner.table", "rotary"}


def llama(device: str = "cpu", layers: int = 2) -> nn.Module:
    return build_model({"huggingface": {**LLAMA, "num_hidden_layers": layers}}, device, resolve=no_factory)


def test_llama_is_unmodified_and_splits_exactly(monkeypatch: pytest.MonkeyPatch) -> None:
    transformers = pytest.importorskip("transformers")
    masking_utils = pytest.importorskip("transformers.masking_utils")
    ids = (torch.arange(3 * 8).view(3, 8) % 50,)
    captured = capture(llama("meta"), ids)
    assert captured.batch_is_dynamic
    assert len(captured.units) > 6
    case = ModelCase(llama, ids)
    count = len(captured.units)
    stages = build(captured, case, list(range(count + 1)))
    torch.manual_seed(0)
    real = llama()
    trained, evaluated = (without_buffers(run_stages(stages, ids, training)) for training in (True, False))
    run_eager(real, ids, {}, False, set()).assert_equal(evaluated)
    # Untraced and without a mask, transformers lets attention's kernel repeat each key and value for its group of
    # heads (enable_gqa); while it is captured, it makes a mask and repeats them itself. The backward of the first sums
    # over a group inside the kernel, that of the second outside: torch does not promise the same rounding.
    run_eager(real, ids, {}, True, set()).assert_equal(trained, gradient_tolerance=1e-6)
    with monkeypatch.context() as as_captured:
        as_captured.setattr(masking_utils, "is_tracing", lambda *_: True)
        run_eager(real, ids, {}, True, set()).assert_equal(trained)
    # Only the hidden state crosses a joint of two layers: every stage makes mask and rotary tables itself.
    joints = [u for u in captured.units if u.name.endswith("mlp.down_proj")]
    assert [u.boundary_bytes for u in joints] == [8 * 16 * 4] * 2

    saved = {key: value for stage in stages for key, value in stage.state_dict().items()}
    config = transformers.AutoConfig.for_model(**LLAMA)
    fresh = transformers.AutoModelForCausalLM.from_config(config)
    fresh.load_state_dict(saved, strict=True)
    expected = fresh.eval()(input_ids=ids[0]).logits
    assert torch.equal(run_stages(stages, ids, False).outputs[0], expected)
    assert verify(captured, real, ids).short_batches


def test_llama_takes_an_attention_mask() -> None:
    pytest.importorskip("transformers")
    mask = torch.ones(3, 8, dtype=torch.long)
    mask[1, :3] = 0
    inputs = (torch.arange(3 * 8).view(3, 8) % 50, mask)
    captured = capture(llama("meta", layers=1), inputs)
    assert verify(captured, llama(layers=1), inputs).largest_difference == 0.0


def test_a_configuration_may_name_its_class_and_takes_inputs_by_keyword() -> None:
    pytest.importorskip("transformers")
    size = {"vocab_size": 20, "hidden_size": 8, "intermediate_size": 8, "num_hidden_layers": 1}
    config = {"model_type": "bert", "architectures": ["BertForSequenceClassification"], "num_labels": 3, **size}
    config = {"huggingface": {**config, "num_attention_heads": 2, "max_position_embeddings": 8}}
    bert = build_model(config, "cpu", resolve=no_factory)
    inputs = {"attention_mask": torch.tensor([[1, 1, 1], [1, 0, 0]]), "input_ids": torch.ones(2, 3, dtype=torch.long)}
    assert bert(**inputs).shape == (2, 3)
    assert verify(capture(build_model(config, "meta", resolve=no_factory), (), inputs), bert, (), inputs).short_batches


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"model_type": None}, "model.huggingface.model_type: expected the name"),
        ({"model_type": "no-such-model"}, "model.huggingface.model_type: transformers has no"),
        ({"architectures": []}, "model.huggingface.architectures: expected one class"),
        (
            {"hidden_sze": 32},
            "model.huggingface.hidden_sze: a configuration of llama has no such key; did you mean 'hidden_size'",
        ),
        ({"architectures": ["AutoConfig"]}, "model.huggingface.architectures: transformers has no model"),
        ({"architectures": ["LlamaForCausalLn"]}, "did you mean 'LlamaForCausalLM'"),
    ],
)
def test_refuses_a_wrong_hugging_face_configuration(change: dict[str, object], message: str) -> None:
    pytest.importorskip("transformers")
    with pytest.raises(InvalidInput, match=message):
        build_model({"huggingface": {**LLAMA, **change}}, "meta", resolve=no_factory)


def test_keys_of_published_configurations_that_nobody_reads_pass() -> None:
    pytest.importorskip("transformers")
    old = {"torch_dtype": "float32", "transformers_version": "4.40.0", "pretraining_tp": 1, "rope_theta": 10000.0}
    model = build_model({"huggingface": {**LLAMA, **old, "_name_or_path": "x"}}, "meta", resolve=no_factory)
    assert type(model).__name__ == "LlamaForCausalLM"


def test_tied_llama_splits_with_one_name_for_both_places() -> None:
    pytest.importorskip("transformers")
    config = {"huggingface": {**LLAMA, "num_hidden_layers": 1, "tie_word_embeddings": True}}
    ids = (torch.arange(3 * 8).view(3, 8) % 50,)
    captured = capture(build_model(config, "meta", resolve=no_factory), ids)
    assert captured.aliases == {"model.embed_tokens.weight": ("lm_head.weight",)}
    assert captured.tied == {"model.embed_tokens.weight": (0, len(captured.units) - 1)}
    assert verify(captured, build_model(config, "cpu", resolve=no_factory), ids).largest_difference < 1e-6


def test_names_of_one_parameter_are_told() -> None:
    tied = nn.Sequential(nn.Linear(2, 2), nn.Linear(2, 2), nn.Linear(2, 2))
    tied[1].weight = tied[2].weight = tied[0].weight
    assert aliases(tied) == {"0.weight": ("1.weight", "2.weight")}
    assert tied_names(tied)["1.weight"] == ("0.weight", "2.weight")
    assert aliases(make(2, 3)) == tied_names(make(2, 3)) == {}


def test_a_checkpoint_of_a_class_that_ties_may_lack_a_name_of_an_untied_model() -> None:
    pytest.importorskip("transformers")
    assert tied_names(llama("meta"))["lm_head.weight"] == ("model.embed_tokens.weight",)


def test_says_which_package_is_missing(monkeypatch: pytest.MonkeyPatch) -> None:
    real = builtins.__import__

    def without(name: str, *args: Any, **kwargs: Any) -> Any:
        if name == "transformers":
            raise ImportError(name)
        return real(name, *args, **kwargs)

    monkeypatch.setattr(builtins, "__import__", without)
    with pytest.raises(InvalidInput, match="pip install transformers"):
        llama()


def test_a_weight_that_the_old_weight_norm_has_computed_is_copied() -> None:
    with warnings.catch_warnings(action="ignore"):
        model = nn.Sequential(nn.utils.weight_norm(nn.Linear(2, 3)), nn.Linear(3, 1))
    twin = twin_of(model)
    assert twin[0].weight_v is model[0].weight_v
    assert torch.equal(twin[0].weight, model[0].weight)
    assert twin[0].weight is not model[0].weight
    assert verify(capture(model, (torch.ones(2, 2),)), model, (torch.ones(2, 2),)).largest_difference == 0.0


def test_a_configuration_can_say_bfloat16_and_its_check_allows_for_rounding() -> None:
    model = build_model({"huggingface": {**LLAMA, "dtype": "bfloat16", "use_cache": False}}, "cpu", resolve=no_factory)
    assert {parameter.dtype for parameter in model.parameters()} == {torch.bfloat16}
    sample = (torch.arange(16).view(2, 8),)
    captured = capture(model, sample)
    numbers = sum(parameter.numel() for parameter in model.parameters())
    assert sum(unit.narrow_bytes for unit in captured.units) == 2 * numbers
    assert 0.0 < verify(captured, model, sample).largest_difference < 0.03
