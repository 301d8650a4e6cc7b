"""Makes the model that a job describes, from a factory of the user's or a Hugging Face configuration.

In: the `model` section of a job file. Out: the model, its initial weights, and the names of parameters that have
several. A Hugging Face model keeps its class and the names of its weights; only its forward is narrowed to what a
pipeline can carry (tensors in, logits out, no cache).
"""

import copy
import inspect
import json
import warnings
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from difflib import get_close_matches
from typing import Any, cast

import torch
from torch import Tensor, nn
from torch.nn.modules.module import register_module_parameter_registration_hook

from ravnest.errors import InvalidInput
from ravnest.factories import describe, invoke, user_code
from ravnest.splitting.bottlenecks import insert_bottlenecks

Resolve = Callable[[str], Callable[..., Any]]
"""Finds the function that `package.module:function` names."""
EXTRA_STATE = "_extra_state"
"""The name under which a state_dict holds what get_extra_state returns."""
_MISSPELT = 0.85
"""An unknown key whose similarity (difflib's ratio) to a known one is at least this is taken for a misspelling."""


def build_model(config: Mapping[str, Any], device: torch.device | str, *, resolve: Resolve) -> nn.Module:
    """The model that a job's `model` describes, on `device` ("meta" allocates nothing), with its bottlenecks.

    config: {factory, args} or {huggingface: {model_type, ...}}, and perhaps bottlenecks.
    Raises InvalidInput naming the key that is wrong.
    """
    factory, huggingface = config.get("factory"), config.get("huggingface")
    if (factory is None) == (huggingface is None):
        raise InvalidInput("needs either `factory` or `huggingface`", key="model")
    with torch.device(device):
        if huggingface is not None:
            model = _hugging_face(huggingface)
        else:
            model = _of_factory(str(factory), config.get("args") or {}, resolve)
        insert_bottlenecks(model, config.get("bottlenecks") or ())
    return model


def _of_factory(factory: str, args: Mapping[str, Any], resolve: Resolve) -> nn.Module:
    with warnings.catch_warnings():
        # Weights that the factory loads are kept where it is called on the CPU, which makes the first weights.
        warnings.filterwarnings("ignore", message=".*from a non-meta parameter.*")
        model = invoke(resolve(factory), factory, args=args, key="model.factory")
    if not isinstance(model, nn.Module):
        raise InvalidInput(f"{factory!r} returned {type(model).__name__}, not a torch.nn.Module", key="model.factory")
    _refuse_lazy(model)
    return model


def _refuse_lazy(model: nn.Module) -> None:
    for name, module in model.named_modules():
        tensors = (*module.parameters(recurse=False), *module.buffers(recurse=False))
        if any(torch.nn.parameter.is_lazy(tensor) for tensor in tensors):
            raise InvalidInput(
                f"{name or 'the model'!r} is a {type(module).__name__}, whose shape is known only after its first"
                " batch: give it its sizes, as torch.nn.Linear(in_features, out_features) has them, or call the model"
                " once on a batch in the factory",
                key="model.factory",
            )


@dataclass
class LoadedWeights:
    """What a factory seems to load: the classes of the modules that load_state_dict was called on, or the names under
    which transformers' from_pretrained found weights."""

    sources: list[str] = field(default_factory=list)


@contextmanager
def noting_loaded_weights() -> Iterator[LoadedWeights]:
    """Notes which modules are given weights by load_state_dict while the `with` block runs."""
    noted = LoadedWeights()
    original = nn.Module.load_state_dict

    def load(self: nn.Module, *args: Any, **kwargs: Any) -> Any:
        noted.sources.append(f"{type(self).__name__}.load_state_dict")
        return original(self, *args, **kwargs)

    nn.Module.load_state_dict = load  # type: ignore[method-assign]
    try:
        yield noted
    finally:
        nn.Module.load_state_dict = original  # type: ignore[method-assign]


def pretrained_sources(model: nn.Module) -> list[str]:
    """Where transformers' models inside `model` say that they come from: the names given to from_pretrained."""
    named = (getattr(module, "name_or_path", None) for module in model.modules())
    return sorted({name for name in named if isinstance(name, str) and name})


def initial_weights(build: Callable[[], nn.Module], seed: int) -> dict[str, Tensor]:
    """The weights that `build` gives on the CPU after torch.manual_seed(seed), by name.

    It includes buffers that `state_dict` leaves out (rotary frequencies) and tensors kept as plain attributes, since
    stages need their values and a model on the meta device has none. The global random state is left as it was.
    """
    with torch.random.fork_rng(devices=[]), torch.device("cpu"):
        torch.manual_seed(seed)
        return weights_of(build())


def initial_buffers(build: Callable[[], nn.Module], seed: int) -> dict[str, Tensor]:
    """What `initial_weights` gives besides the parameters.

    The parameters never take memory together: each is dropped as soon as its module has made it. A factory that reads
    what was dropped is called once more, and then they do.
    """

    def drop(module: nn.Module, name: str, parameter: nn.Parameter | None) -> nn.Parameter | None:
        if parameter is None or parameter.is_meta:
            return None  # as it is: a parameter that is used twice stays one
        return nn.Parameter(torch.empty_like(parameter, device="meta"), requires_grad=parameter.requires_grad)

    # torch's annotation forgets that a hook may return another parameter.
    hook = register_module_parameter_registration_hook(drop)  # type: ignore[arg-type]
    try:
        made = initial_weights(build, seed)
    except InvalidInput:
        hook.remove()
        made = initial_weights(lambda: _without_parameters(build()), seed)
    finally:
        hook.remove()
    return {name: tensor for name, tensor in made.items() if not tensor.is_meta}


def _without_parameters(model: nn.Module) -> nn.Module:
    for module in model.modules():
        for name, parameter in list(module._parameters.items()):
            if parameter is not None:
                module._parameters[name] = nn.Parameter(torch.empty_like(parameter, device="meta"), False)
    return model


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
    return weights | extra_states(model)


def values_of(model: nn.Module) -> dict[str, Tensor]:
    """`weights_of`, with copies of all that a forward may change: of everything but the parameters."""
    parameters = {name for name, _ in model.named_parameters()}
    return {name: tensor if name in parameters else tensor.clone() for name, tensor in weights_of(model).items()}


def extra_states(model: nn.Module) -> dict[str, Tensor]:
    """What modules save of their own through get_extra_state, under its name in the model's state_dict.

    Raises InvalidInput for one that is no tensor: files of weights hold tensors only.
    """
    found: dict[str, Tensor] = {}
    for path, module in model.named_modules():
        if type(module).get_extra_state is nn.Module.get_extra_state:
            continue
        name = f"{path}.{EXTRA_STATE}" if path else EXTRA_STATE
        with user_code(f"get_extra_state of {path or type(model).__name__!r}", key="model"):
            state = module.get_extra_state()
        if not isinstance(state, Tensor):
            raise InvalidInput(
                f"get_extra_state of {path or type(module).__name__!r} returns {type(state).__name__}, which files of"
                " weights cannot hold: return a tensor, or keep it in a buffer",
                key="model",
            )
        found[name] = state.detach()
    return found


def twin_of(model: nn.Module) -> nn.Module:
    """A copy of the model that shares its parameters. All else of it may be changed.

    Raises InvalidInput where the user's class cannot be copied.
    """
    with user_code(f"{type(model).__name__} cannot be copied: copy.deepcopy", key="model"):
        return copy.deepcopy(model, {id(parameter): parameter for parameter in model.parameters()} | computed(model))


def computed(model: nn.Module) -> dict[int, Tensor]:
    """Copies of what the model has computed and keeps as plain attributes, by id, as copy.deepcopy takes them.

    torch refuses to copy them: they have a graph behind them. torch.nn.utils.weight_norm keeps its weight so.
    """
    kept = (value for module in model.modules() for value in vars(module).values())
    return {id(value): value.detach().clone() for value in kept if isinstance(value, Tensor) and not value.is_leaf}


def aliases(model: nn.Module) -> dict[str, tuple[str, ...]]:
    """Return, for each parameter with several names, its first name, which the stages use, and the others."""
    names: dict[int, list[str]] = {}
    for name, parameter in model.named_parameters(remove_duplicate=False):
        names.setdefault(id(parameter), []).append(name)
    return {first: tuple(others) for first, *others in names.values() if others}


def tied_names(model: nn.Module) -> dict[str, tuple[str, ...]]:
    """Return the other names of each parameter that has, or may have had when it was saved, several."""
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


def huggingface_generation(model: nn.Module) -> str | None:
    """The generation_config.json of a Hugging Face model; None for one that generates nothing."""
    settings = getattr(model, "generation_config", None)
    return None if settings is None else str(settings.to_json_string(use_diff=True))


def _hugging_face(values: Mapping[str, Any]) -> nn.Module:
    try:
        import transformers
    except ImportError:
        raise InvalidInput(
            "a Hugging Face model needs the package transformers; install it with: pip install transformers",
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
