"""Jobs made in Python: callables become references, as a job.yaml writes them.

In: the arguments of `ravnest.Job`, where model, data, loss, metrics and sample may be callables. Out: the same
arguments with `module:name` in place of each callable, and the place of the code, whose folder is shipped to the nodes
like the folder of a job.yaml.

The rule is one: every process that needs a callable imports it from its module. So plan.yaml stays complete in itself,
and a run can be resumed by another process. A function of a script counts as one of a module with the script's name,
so the script needs `if __name__ == "__main__":` around all that must not happen again when it is imported, as
`multiprocessing` asks for too. What has no module, such as a lambda or a function of a notebook cell, is refused.
"""

import ast
import sys
import sysconfig
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from pathlib import Path
from types import ModuleType

from ravnest.errors import InvalidInput

_CODE_KEYS = ("model", "data", "loss", "metrics", "sample")
_MEASURES = ("loss", "metrics")
_NAMED = ("factory", "function", "collate_fn")
_LIBRARIES = {sysconfig.get_path(name) for name in ("stdlib", "platstdlib", "purelib", "platlib")}
_TO_A_MODULE = "define it at the top level of a module, and import it from there"
_IN_A_NOTEBOOK = (
    "put it in a module: in a notebook, make `%%writefile my_job.py` the first line of the cell that defines it and"
    " what it uses, and import my_job in the next one"
)


def as_written(given: Mapping[str, object]) -> tuple[dict[str, object], Path | None]:
    """The arguments of a Job as a job.yaml would have them, and the file or package that its code lies in.

    A callable, or a functools.partial of one with keyword arguments, becomes a mapping with `factory` or `function` and
    `args`; so does a callable within such a mapping. The place is None where no callable of the user's own was given.

    Raises:
        InvalidInput: at the argument's key, for a callable that other processes cannot import, and where callables come
            from several folders.
    """
    written = dict(given)
    places: list[tuple[str, Path]] = []
    for key in (key for key in _CODE_KEYS if key in written):
        value = written[key]
        if key == "metrics" and isinstance(value, list | tuple):
            written[key] = tuple(_entry(key, each, places) for each in value)
        else:
            written[key] = _entry(key, value, places)
    _require_one_folder(places)
    return written, places[0][1] if places else None


def _entry(key: str, value: object, places: list[tuple[str, Path]]) -> object:
    """One value as a job.yaml writes it. Where it is or holds a callable, the place of its module is added to
    `places`."""
    if isinstance(value, Mapping):
        named = {name: item for name, item in value.items() if name in _NAMED and callable(item)}
        return {**value, **{name: _reference(key, item, places) for name, item in named.items()}}
    if not callable(value):
        return value
    function, args = _unwrapped(key, value)
    # The factory of a loss returns it; a function is the loss itself. A class can only be a factory.
    kind = "function" if key in _MEASURES and not isinstance(function, type) else "factory"
    return {kind: _reference(key, function, places), "args": args}


def _unwrapped(key: str, value: Callable[..., object]) -> tuple[Callable[..., object], dict[str, object]]:
    if not isinstance(value, partial):
        return value, {}
    if value.args:
        raise InvalidInput("was given arguments without names", key=key, hint="name them in functools.partial")
    function, args = _unwrapped(key, value.func)
    return function, {**args, **value.keywords}


def _reference(key: str, function: Callable[..., object], places: list[tuple[str, Path]]) -> str:
    """`module:name` of a callable. Raises InvalidInput for one that cannot be imported by that name."""
    name, module = getattr(function, "__qualname__", None), sys.modules.get(getattr(function, "__module__", None) or "")
    if name is None or module is None:
        hint = f"give its class and arguments: {key}={{'factory': TheClass, 'args': {{...}}}}"
        raise InvalidInput(f"is a {type(function).__name__} object, which has no name to import", key=key, hint=hint)
    if "<" in name:
        what = "is a lambda" if name.endswith("<lambda>") else f"{name.rpartition('.')[2]!r} is defined in a function"
        raise InvalidInput(f"{what}: the stages' processes cannot import it", key=key, hint=_TO_A_MODULE)
    found: object = module
    for part in name.split("."):
        found = getattr(found, part, None)
    if found != function:
        raise InvalidInput(f"{name!r} of {module.__name__} is now something else", key=key, hint=_TO_A_MODULE)
    imported = _script_name(key, name, module) if module.__name__ == "__main__" else module.__name__
    file = getattr(module, "__file__", None)
    if file is not None and not any(Path(file).is_relative_to(folder) for folder in _LIBRARIES):
        places.append((key, _place(imported, Path(file).resolve())))
    return f"{imported}:{name}"


def _script_name(key: str, name: str, main: ModuleType) -> str:
    """The name of the running script as a module. Raises InvalidInput where stages cannot import it."""
    file = getattr(main, "__file__", None)
    if file is None or not Path(file).is_file():
        raise InvalidInput(
            f"{name!r} is defined in a notebook or an interactive session: the stages' processes cannot import it",
            key=key,
            hint=_IN_A_NOTEBOOK,
        )
    spec = getattr(main, "__spec__", None)
    if spec is None and not Path(file).stem.isidentifier():
        message = f"{name!r} is defined in {file}, whose name is no module's"
        raise InvalidInput(message, key=key, hint="name the script with letters, digits and _, or move it to a module")
    if not _is_guarded(Path(file)):
        raise InvalidInput(
            f"{name!r} is defined in {file}, which every stage imports, and which would run again there",
            key=key,
            hint='put what the script does under `if __name__ == "__main__":`, or move the function to a module',
        )
    return Path(file).stem if spec is None else str(spec.name)


def _is_guarded(script: Path) -> bool:
    """Whether something in the script is done only when it is run itself."""
    tests = (node.test for node in ast.parse(script.read_bytes()).body if isinstance(node, ast.If))
    return any({"__name__", "__main__"} <= set(_names(test)) for test in tests)


def _names(test: ast.expr) -> Iterator[object]:
    for node in ast.walk(test):
        if isinstance(node, ast.Name):
            yield node.id
        elif isinstance(node, ast.Constant):
            yield node.value


def _place(module: str, file: Path) -> Path:
    """The top-level module or package of `module`, which lies in `file`."""
    top, *inner = module.split(".")
    levels = len(inner) + (file.name == "__init__.py")
    return file if levels == 0 else file.parents[levels - 1].with_name(top)


def _require_one_folder(places: list[tuple[str, Path]]) -> None:
    """Raises InvalidInput where code lies beside neither the first place nor the current folder: nodes get no other."""
    allowed = {place.parent for _, place in places[:1]} | {Path.cwd().resolve()}
    for key, place in places:
        if place.parent not in allowed:
            raise InvalidInput(
                f"comes from {place}, and the rest of the job from {places[0][1].parent}: nodes get one folder",
                key=key,
                hint="put both in one folder, or start Python in the other one",
            )
