"""torch's optimizers without its compiler.

Each of torch's optimizers tells torch.compile what not to compile, and imports the compiler for it as soon as it is
made: 800 modules, 70 MiB and seconds of every stage's start, for steps that nobody compiles. Decides only that the
functions below those wrappers are called: the arithmetic is torch's own, and the tests hold it to torch's results, bit
for bit.
"""

from collections.abc import Callable
from functools import cache
from typing import Any

import torch
from torch.optim import Optimizer

_WRAPPED = ("add_param_group", "zero_grad", "state_dict", "load_state_dict")


def uncompiled(chosen: type[Optimizer]) -> type[Optimizer]:
    """A subclass that does the same. What torch has not wrapped stays as it is."""
    hashable: Any = chosen  # every class is; typeshed says that Optimizer's is not
    made: type[Optimizer] = _made(hashable)
    return made


@cache
def _made(chosen: Any) -> Any:
    own: dict[str, Any] = {name: _inner(getattr(chosen, name)) for name in _WRAPPED}
    step = _inner(chosen.step)

    def plain_step(self: Optimizer, closure: Callable[[], float] | None = None) -> float | None:
        with torch.no_grad():  # what torch's wrapper is for, besides
            result: float | None = step(self, closure)
            return result

    if step is not chosen.step:
        own["step"] = plain_step
    return type(chosen.__name__, (chosen,), {"__module__": __name__, "__doc__": chosen.__doc__, **own})


def _inner(function: Callable[..., Any]) -> Callable[..., Any]:
    """What a chain of decorators ends in."""
    while (wrapped := getattr(function, "__wrapped__", None)) is not None:
        function = wrapped
    return function
