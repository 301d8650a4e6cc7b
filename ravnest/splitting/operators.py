"""Which module registers an operator that is not torch's own, or defines an autograd.Function of the user's.

In: the targets of a graph's operations, in the process that captured it. Out: the modules that another process has to
import before it knows these operators. A stage imports neither the model's code nor the libraries that it uses, so a
program has to say what it needs.
"""

from collections.abc import Iterable

from torch._library.custom_ops import OPDEFS

from ravnest.errors import ModelNotSplittable
from ravnest.factories import is_imported, name_to_import
from ravnest.splitting.autograd_functions import is_function, module_of

_TORCHS_OWN = frozenset({"aten", "mkldnn", "prim", "prims", "quantized", "sparse"})


def registering_modules(targets: Iterable[str]) -> tuple[str, ...]:
    """The modules of the operators and functions among `targets` that torch itself does not have, sorted.

    Raises ModelNotSplittable for an operator that comes from no module that could be imported.
    """
    listed = list(targets)
    names = {tuple(target.split(".")[:2]) for target in listed if ":" not in target}
    modules = {_module(space, name) for space, name in names if space not in _TORCHS_OWN}
    return tuple(sorted(modules | {module_of(target) for target in listed if is_function(target)}))


def _module(space: str, name: str) -> str:
    defined = OPDEFS.get(f"{space}::{name}")
    if defined is not None:
        return name_to_import(defined._init_fn)
    if is_imported(space):  # a library's compiled operators, which bear its name: torchvision.nms
        return space
    raise ModelNotSplittable(
        f"the model uses the operator {space}::{name}, and no module is known that a stage could import for it: define"
        " it with torch.library.custom_op"
    )
