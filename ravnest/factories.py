"""Finds and calls the user's own code, which a job file names as `package.module:attribute`.

In: such a reference, with the folders in which its module is looked for. Out: the callable, or what it returns. A
mistake in the user's code becomes an InvalidInput of one line, with the place in the user's file.
"""

import importlib
import inspect
import sys
import sysconfig
import traceback
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from difflib import get_close_matches
from importlib.machinery import PathFinder
from pathlib import Path
from types import ModuleType
from typing import Annotated

from pydantic import AfterValidator, Field, JsonValue

from ravnest.errors import InvalidInput
from ravnest.job_sections import Section


def _as_reference(text: str) -> str:
    module, colon, attribute = text.partition(":")
    if not colon or not all(part.isidentifier() for part in (*module.split("."), *attribute.split("."))):
        raise ValueError(f"expected package.module:attribute, not {text!r}")
    return text


_LONGEST_MESSAGE = 300

Reference = Annotated[str, AfterValidator(_as_reference)]
"""`package.module:attribute`, checked for its form only."""


class FactoryConfig(Section):
    """A callable of the user's and its keyword arguments."""

    factory: Reference
    """`package.module:attribute`, looked for in the job file's folder first."""

    args: dict[str, JsonValue] = Field(default_factory=dict)
    """Keyword arguments of the call."""

    @property
    def reference(self) -> str:
        """The place of the callable, as `module:name`, whatever is done with it."""
        return self.factory


class FunctionConfig(Section):
    """A callable of the user's that is used itself, where a FactoryConfig names one that makes it."""

    function: Reference
    """`package.module:attribute`, looked for in the job file's folder first."""

    args: dict[str, JsonValue] = Field(default_factory=dict)
    """Keyword arguments that every call gets besides."""

    @property
    def reference(self) -> str:
        """The place of the callable, as `module:name`, whatever is done with it."""
        return self.function


def resolve(
    reference: str, search_dirs: Sequence[Path], *, path: str | None = None, key: str | None = None
) -> Callable[..., object]:
    """Return the callable that `reference` names, its module imported with `search_dirs` first on sys.path.

    The folders stay on sys.path, as a script's own does, so that the user's functions may import later too.
    Raises InvalidInput, at `path` and `key`, when the module is missing, fails, or lacks the attribute.
    """
    try:
        name, _, attribute = _as_reference(reference).partition(":")
    except ValueError as error:
        raise InvalidInput(str(error), path=path, key=key) from None
    folders = _searched_first(search_dirs)
    _refuse_namesake(name, folders, path, key)
    found: object = _import(name, folders, path, key)
    for part in attribute.split("."):
        if not hasattr(found, part):
            near = get_close_matches(part, [one for one in dir(found) if not one.startswith("_")], n=1)
            hint = f"; did you mean {near[0]!r}?" if near else ""
            raise InvalidInput(f"module {name!r} has no {attribute!r}{hint}", path=path, key=key)
        found = getattr(found, part)
    if not callable(found):
        raise InvalidInput(f"{reference!r} is {type(found).__name__}, which cannot be called", path=path, key=key)
    return found


def call(
    factory: FactoryConfig,
    search_dirs: Sequence[Path],
    *positional: object,
    path: str | None = None,
    key: str | None = None,
) -> object:
    """Return what the user's factory returns for `positional` and its `args`.

    Raises InvalidInput for anything it raises, with the type, the message and the line in the user's file.
    """
    function = resolve(factory.factory, search_dirs, path=path, key=key)
    return invoke(function, factory.factory, *positional, args=factory.args, path=path, key=key)


def invoke(
    function: Callable[..., object],
    name: str,
    *positional: object,
    args: Mapping[str, object],
    path: str | None = None,
    key: str | None = None,
) -> object:
    """Return what `function`, which the user calls `name`, returns.

    Raises InvalidInput for arguments that it does not take, and for anything it raises.
    """
    _refuse_arguments(function, name, positional, args, path, key)
    with user_code(repr(name), path=path, key=key):
        return function(*positional, **args)


def import_modules(names: Sequence[str], search_dirs: Sequence[Path]) -> None:
    """Import modules by name, with `search_dirs` first on sys.path. Raises InvalidInput for one that is not there."""
    if names:
        folders = _searched_first(search_dirs)
        for name in names:
            _refuse_namesake(name, folders, None, None)
            _import(name, folders, None, None)


def is_imported(module: str) -> bool:
    """Whether this process has imported a module of that name."""
    return module in sys.modules


def name_to_import(defined: Callable[..., object]) -> str:
    """The name by which another process can import the module of a function or class. A script has that of its file."""
    if defined.__module__ != "__main__":
        return defined.__module__
    file = inspect.getsourcefile(defined)
    return Path(file).stem if file is not None else defined.__module__


def imported(module: str, path: str) -> object:
    """What the attributes `path` (`Class.inner`) lead to in a module that is imported already; None without one.

    The script that runs counts under the name of its file.
    """
    script = sys.modules["__main__"]
    is_script = Path(getattr(script, "__file__", None) or "").stem == module
    found: object = sys.modules.get(module) or (script if is_script else None)
    for part in path.split("."):
        found = getattr(found, part, None)
    return found


def source_files() -> list[str]:
    """The files of the modules that this process has imported, those of libraries left out."""
    files = (getattr(module, "__file__", None) for module in list(sys.modules.values()))
    return sorted({str(Path(file).resolve()) for file in files if isinstance(file, str) and not is_library(file)})


@contextmanager
def user_code(what: str, *, path: str | None = None, key: str | None = None) -> Iterator[None]:
    """Whatever the user's code inside raises becomes an InvalidInput that `what` raised it, and where."""
    try:
        yield
    except InvalidInput:
        raise
    except (Exception, SystemExit) as error:
        raise InvalidInput(f"{what} raised {describe(error)}", path=path, key=key) from error


def describe(error: BaseException) -> str:
    """`TypeError: message (file:line; RAVNEST_TRACEBACK=1 shows the whole)`, on one line of bounded length."""
    # A SyntaxError's own text repeats its place.
    said = " ".join((error.msg if isinstance(error, SyntaxError) else str(error)).split())
    if len(said) > _LONGEST_MESSAGE:
        said = f"{said[:_LONGEST_MESSAGE]} …"
    name = f"{type(error).__name__}: {said}" if said else type(error).__name__
    inside = "; ".join(part for part in (place(error), "RAVNEST_TRACEBACK=1 shows the whole") if part)
    return f"{name} ({inside})"


def place(error: BaseException) -> str | None:
    """`file:line` of the deepest line of the user's own code, else of the library that raised; None without one."""
    if isinstance(error, SyntaxError) and error.filename:
        return f"{error.filename}:{error.lineno}"
    frames = [
        frame
        for frame in traceback.extract_tb(error.__traceback__)
        if not frame.filename.startswith("<") and not Path(frame.filename).is_relative_to(_OURS)
    ]
    own = [frame for frame in frames if not is_library(frame.filename)]
    return next((f"{frame.filename}:{frame.lineno}" for frame in (own or frames)[-1:]), None)


def is_library(file: str) -> bool:
    """Whether a file of Python code is of an installed library, and not the user's own."""
    return any(Path(file).is_relative_to(folder) for folder in _LIBRARIES)


_OURS = Path(__file__).parent
_LIBRARIES = {sysconfig.get_path(name) for name in ("stdlib", "platstdlib", "purelib", "platlib")}


def _searched_first(search_dirs: Sequence[Path]) -> list[str]:
    folders = [str(folder.resolve()) for folder in search_dirs]
    sys.path[:] = folders + [entry for entry in sys.path if entry not in folders]
    importlib.invalidate_caches()
    return folders


def _refuse_arguments(
    function: Callable[..., object],
    name: str,
    positional: Sequence[object],
    args: Mapping[str, object],
    path: str | None,
    key: str | None,
) -> None:
    try:
        signature = inspect.signature(function)
    except (TypeError, ValueError):
        return  # some of what is written in C has none
    try:
        signature.bind_partial(*positional, **args)  # first: an unknown name says more than the one it leaves missing
        signature.bind(*positional, **args)
    except TypeError as error:
        takes = ", ".join(str(parameter) for parameter in signature.parameters.values()) or "none"
        where = f"{key.removesuffix('.factory')}.args" if key else None
        message = f"{name!r} does not take these arguments: {error}; it takes ({takes})"
        raise InvalidInput(message, path=path, key=where) from None


def _refuse_namesake(name: str, folders: Sequence[str], path: str | None, key: str | None) -> None:
    """A module of this name imported from elsewhere would silently stand in for the user's."""
    top = name.partition(".")[0]
    loaded = sys.modules.get(top)
    spec = PathFinder.find_spec(top, list(folders))
    if loaded is None or spec is None or spec.origin is None:
        return
    if Path(getattr(loaded, "__file__", None) or "").resolve() != Path(spec.origin).resolve():
        other = getattr(loaded, "__file__", None) or "Python itself"
        message = f"the module name {top!r} of {spec.origin} is already taken by {other}: rename the file"
        raise InvalidInput(message, path=path, key=key)


def _import(name: str, folders: Sequence[str], path: str | None, key: str | None) -> ModuleType:
    try:
        return importlib.import_module(name)
    except ModuleNotFoundError as error:
        if error.name is not None and (name == error.name or name.startswith(f"{error.name}.")):
            places = ", ".join(folders) or "the Python path"
            raise InvalidInput(f"no module {error.name!r} in {places}", path=path, key=key) from error
        raise InvalidInput(f"importing {name!r} raised {describe(error)}", path=path, key=key) from error
    except (Exception, SystemExit) as error:
        raise InvalidInput(f"importing {name!r} raised {describe(error)}", path=path, key=key) from error
