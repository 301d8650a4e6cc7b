"""Refusing models that hold one parameter in several places, until stages can share one.

Two names for one parameter are always refused. One name used in several places is not, as long as these
places can stay in one unit without it becoming most of the model."""

from collections import defaultdict

from torch import nn

from ravnest.errors import ModelNotSplittable
from ravnest.splitting.liveness import Layout
from ravnest.splitting.units import Work

_LARGEST_SHARE = 0.5


def refuse_tied(model: nn.Module) -> None:
    """Raises ModelNotSplittable naming all names of a parameter that has more than one."""
    names: dict[int, list[str]] = defaultdict(list)
    for name, parameter in model.named_parameters(remove_duplicate=False):
        names[id(parameter)].append(name)
    for tied in names.values():
        if len(tied) > 1:
            raise ModelNotSplittable(
                f"{' and '.join(repr(name) for name in tied)} are one parameter: "
                f"tied models are not supported yet{_advice(model)}"
            )


def refuse_spread(model: nn.Module, layout: Layout, work: Work) -> None:
    """Raises ModelNotSplittable where two uses of one parameter have more than half of the model between
    them."""
    for name in layout.converted.parameters:
        first, last = layout.anchored.get(name, (0, 0))
        if last <= first:
            continue
        places = [layout.operations[position].scope or "the model itself" for position in (first, last)]
        # Two modules that share a parameter are tied; one module may use its own several times.
        start, end = (first + 1, last) if places[0] == places[1] else (first, last + 1)
        uses = (work.parameter_uses[end] - work.parameter_uses[start]) / work.parameter_uses[-1]
        if max(uses, work.share(start, end)) > _LARGEST_SHARE:
            raise ModelNotSplittable(
                f"parameter {name!r} is used in {places[0]!r} and again in {places[1]!r}, and most of the "
                f"model lies between: tied models are not supported yet{_advice(model)}"
            )


def _advice(model: nn.Module) -> str:
    config = getattr(model, "config", None)
    for option in ("tie_word_embeddings", "tie_encoder_decoder", "tie_weights"):
        if getattr(config, option, False):
            return f"; set {option}=False in its configuration"
    return "; give each place its own parameter (in Hugging Face models: tie_word_embeddings=False)"
