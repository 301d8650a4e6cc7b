"""Parameters that a model uses in several places: which of them may lie in several stages.

Those with several names, and those whose uses have most of the model between them. Any other parameter's uses stay in
one unit, so that it has one owner and nothing about it travels. Decides nothing about how a tied one is trained."""

from torch import nn

from ravnest.splitting.cuts import Work
from ravnest.splitting.liveness import Layout
from ravnest.splitting.model_source import aliases

_LARGEST_SHARE = 0.5


def tied(model: nn.Module, layout: Layout, work: Work) -> frozenset[str]:
    """The parameters between whose uses a cut may lie."""
    found = set(aliases(model))
    for name in layout.converted.parameters:
        first, last = layout.anchored.get(name, (0, 0))
        if last <= first:
            continue
        places = [layout.operations[position].scope for position in (first, last)]
        # Two modules that share a parameter are tied; one module may use its own several times.
        start, end = (first + 1, last) if places[0] == places[1] else (first, last + 1)
        uses = (work.parameter_uses[end] - work.parameter_uses[start]) / work.parameter_uses[-1]
        if max(uses, work.share(start, end)) > _LARGEST_SHARE:
            found.add(name)
    return frozenset(found)
