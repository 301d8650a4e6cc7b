"""Makes the model that a job describes, from a factory of the user's or a Hugging Face configuration.

In: the `model` section of a job file. Out: the model, its initial weights, and the names of parameters that have
several. A Hugging Face model keeps its class and the names of its weights; only its forward is narrowed to what a
pipeline can carry (tensors in, logits out, no cache).
"""

import copy
import inspect
import json
from collections.abc import Callable, Mapping
from difflib import get_close_matches
from typing import Any, cast

import torch
from torch import Tensor, nn
from torch.nn.modules.module import register_module_parameter_registration_hook

from ravnest.errors import InvalidInput
from ravnest.factories import describe, invoke, user_code

Resolve = Callable[[str], Callable[..., Any]]
"""Finds the function that `package.module:function` names."""
_MISSPELT = 0.85
"""An unknown key whose similarity (difflib's ratio) to a known one is at least this is taken for a misspelling."""


def build_model(config: Mapping[str, Any], device: torch.device | str, *, resolve: Resolve) -> nn.Module:
    """The model that a job's `model` describes, on `device` ("meta" allocates nothing).

    config: {factory, args} or {huggingface: {model_type, ...}}.
    Raises InvalidInput naming the key that is wrong.
    """
    factory, huggingface = config.get("factory"), config.get("huggingface")
    if (factory is None) == (huggingface is None):
        raise InvalidInput("needs either `factory` or `huggingface`", key="model")
    with torch.device(device):
        if huggingface is not None:
            return _hugging_face(huggingface)
        assert factory is not None
        try:
            model = invoke(resolve(factory), factory, args=config.get("args") or {}, key="model.factory")
        except InvalidInput as error:
            if "meta tensor" not in error.message.lower():
                raise
            hint = "a model is first built without weights (torch.device('meta')): its constructor must not read values"
            raise InvalidInput(f"{error.message}; {hint}", key=error.key) from error
    if not isinstance(model, nn.Module):
        raise InvalidInput(f"{factory!r} returned {type(model).__name__}, not a torch.nn.Module", key="model.factory")
    return model


def initial_weights(build: Callable[[], nn.Module], seed: int) -> dict[str, Tensor]:
    """The weights that `build` gives on the CPU after torch.manual_seed(seed), by name.

    It includes buffers that `state_dict` leaves out (rotary frequencies) and tensors kept as plain attributes, since
    stages need their values and a model on the meta device has none. The global random state is left as it was.
    """
    with torch.random.fork_rng(devices=[]), torch.device("cpu"):
        torch.manual_seed(seed)
        return weights_of(build())


def initial_buffers(build: Callable[[], nn.Module], seed: int) -> dict[str, Tensor]:
    """What `initial_weights` gives besides the parameters. The parameters never take memory together: each is dropped
    as soon as its module has made it."""

    def drop(module: nn.Module, name: str, parameter: nn.Parameter | None) -> nn.Parameter | None:
        if parameter is None or parameter.is_meta:
            return None  # as it is: a parameter that is used twice stays one
        return nn.Parameter(torch.empty_like(parameter, device="meta"), requires_grad=parameter.requires_grad)

    # torch's annotation forgets that a hook may return another parameter.
    hook = register_module_parameter_registration_hook(drop)  # type: ignore[arg-type]
    try:
        made = initial_weights(build, seed)
    finally:
        hook.remove()
    return {name: tensor for name, tensor in made.items() if not tensor.is_meta}


def weights_of(model: nn.Module) -> dict[str, Tensor]:
    """Everything that a stage may need, by original name: parameters, all buffers, and tensors kept as attributes.

    The tensors are the model's own, detached, not copies.
    """
    weights: dict[str, Tensor] = {name: p.detach() for name, p in model.named_parameters()}
    weights |= {name: b.detach() for name, b in model.named_buffers(remove_duplicate=False)}
    for path, module in model.named_modules():
        for name, value in vars(module).items():
            if isinstance(value, Tensor):
                weights[f"{path}.{name}" if path else name] = value.detach()
    return weights


def twin_of(model: nn.Module) -> nn.Module:
    """A copy of the model, which may be changed. Raises InvalidInput where the user's class cannot be copied."""
    with user_code(f"{type(model).__name__} cannot be copied: copy.deepcopy", key="model"):
        return copy.deepcopy(model)


def aliases(model: nn.Module) -> dict[str, tuple[str, ...]]:
    """For each parameter with several names: its first name, which the stages use → the others."""
    names: dict[int, list[str]] = {}
    for name, parameter in model.named_parameters(remove_duplicate=False):
        names.setdefault(id(parameter), []).append(name)
    return {first: tuple(others) for first, *others in names.values() if others}


def tied_names(model: nn.Module) -> dict[str, tuple[str, ...]]:
    """For each name of a parameter that has, or may have had when it was saved, other names: those names."""
    groups = [(first, *others) for first, others in aliases(model).items()]
    listed = getattr(model, "_tied_weights_keys", None)  # transformers: what the class ties unless told not to
    groups += [tuple(map(str, pair)) for pair in listed.items()] if isinstance(listed, dict) else []
    tied: dict[str, tuple[str, ...]] = {}
    for group in groups:
        for name in group:
            others = (other for other in group if other != name)
            tied[name] = tuple(dict.fromkeys((*tied.get(name, ()), *others)))
    return tied


def dropped_names(model: nn.Module) -> tuple[str, ...]:
    """Regular expressions for names in older checkpoints of a Hugging Face model that nothing reads any more."""
    return tuple(getattr(model, "_keys_to_ignore_on_load_unexpected", None) or ())


def huggingface_config(model: nn.Module, dtype: torch.dtype) -> str:
    """The config.json of a Hugging Face model whose weights are saved as `dtype`."""
    config: dict[str, Any] = json.loads(cast(Any, model).config.to_json_string())
    word = str(dtype).removeprefix("torch.")
    # Both words for the precision: transformers has called it torch_dtype up to 4.55.
    config |= {"architectures": [type(model).__name__], "dtype": word, "torch_dtype": word}
    return json.dumps(config, indent=2, sort_keys=True) + "\n"


def _hugging_face(values: Mapping[str, Any]) -> nn.Module:
    try:
        import transformers
    except ImportError:
        raise InvalidInput(
            'a Hugging Face model needs the extra: pip install "ravnest[transformers]"',
            key="model.huggingface",
        ) from None
    options = dict(values)
    model_type = options.pop("model_type", None)
    if not isinstance(model_type, str):
        raise InvalidInput("expected the name of an architecture, such as llama", key="model.huggingface.model_type")
    if model_type not in transformers.CONFIG_MAPPING:
        near = get_close_matches(model_type, [str(name) for name in transformers.CONFIG_MAPPING], n=1)
        hint = f"did you mean {near[0]!r}?" if near else "expected the name of an architecture, such as llama"
        raise InvalidInput(f"transformers has no {model_type!r}; {hint}", key="model.huggingface.model_type")
    make = _architecture(transformers, options.get("architectures"))
    _refuse_misspelt(transformers.CONFIG_MAPPING[model_type], options, model_type)
    try:
        model = make(transformers.AutoConfig.for_model(model_type, **options))
    except Exception as error:
        message = f"transformers refuses this configuration: {describe(error)}"
        raise InvalidInput(message, key="model.huggingface") from error
    model.__class__ = _logits_only(type(model))
    assert isinstance(model, nn.Module)
    return model


def _refuse_misspelt(made_by: Any, options: Mapping[str, Any], model_type: str) -> None:
    """Raise InvalidInput for a key that resembles a known one.

    transformers takes any key, and where one is misspelt it builds the default model, perhaps of billions of
    parameters. Keys that resemble none are accepted, and so are private ones: published configurations have some that
    nobody reads.
    """
    known = {*inspect.signature(made_by).parameters, *dir(made_by), *getattr(made_by, "attribute_map", ())}
    public = sorted(name for name in known if not name.startswith("_"))
    for name in options.keys() - known:
        if name.startswith("_"):
            continue
        if near := get_close_matches(name, public, n=1, cutoff=_MISSPELT):
            raise InvalidInput(
                f"a configuration of {model_type} has no such key; did you mean {near[0]!r}?",
                key=f"model.huggingface.{name}",
            )


def _architecture(transformers: Any, names: object) -> Callable[[Any], Any]:
    """The function that makes the model: of the class that the configuration names, or of a language model."""
    key = "model.huggingface.architectures"
    if names is None:
        make: Callable[[Any], Any] = transformers.AutoModelForCausalLM.from_config
        return make
    if not (isinstance(names, list) and len(names) == 1 and isinstance(names[0], str)):
        raise InvalidInput("expected one class of transformers, such as [BertForSequenceClassification]", key=key)
    found = getattr(transformers, names[0], None)
    if not (isinstance(found, type) and issubclass(found, transformers.PreTrainedModel)):
        near = get_close_matches(names[0], dir(transformers), n=1)
        hint = f"; did you mean {near[0]!r}?" if near else ""
        raise InvalidInput(f"transformers has no model {names[0]!r}{hint}", key=key)
    return found


def _logits_only(base: type) -> type:
    """A subclass (so that weight names stay) whose forward takes the same tensors and returns logits."""
    signature = inspect.signature(base.forward)  # type: ignore[attr-defined]
    fixed = {"use_cache": False} if "use_cache" in signature.parameters else {}

    def forward(self: Any, *args: Tensor, **kwargs: Tensor) -> Tensor:
        found = base.forward(self, *args, **kwargs, **fixed)  # type: ignore[attr-defined]
        logits: Tensor = found.logits
        return logits

    forward.__signature__ = signature  # type: ignore[attr-defined]
    return type(base.__name__, (base,), {"forward": forward, "__module__": base.__module__})
