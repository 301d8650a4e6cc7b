"""Reading and writing of nodes.yaml, plan.yaml and other YAML files.

In: a path and a schema. Out: typed data, or an `InvalidInput` that names the file, the key, what was expected and a
hint. YAML is read as version 1.2 reads numbers (`1e-3` is one). A key that is given twice is an error. No tag makes an
object. `save_plan` and `save_fleet` replace a file at once or not at all. This is the only module of the package that
touches the disk.
"""

import contextlib
import difflib
import os
import re
import tempfile
from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any, TypeVar

import pydantic
import yaml

from cluster_planner.errors import InvalidInput
from cluster_planner.files import schema
from cluster_planner.files.conversion import fleet_from, fleet_to, plan_from, plan_to
from cluster_planner.files.schema import remarks
from cluster_planner.files.validation_errors import problems_of
from cluster_planner.inputs.fleet import Fleet
from cluster_planner.plan import Plan, require_memory, validate

Schema = TypeVar("Schema", bound=pydantic.BaseModel)

_FLOAT = re.compile(r"^[-+]?(\.[0-9]+|[0-9]+(\.[0-9]*)?)[eE][-+]?[0-9]+$")


DEEPEST = 100
"""The largest number of nested levels in a file. libyaml's reader recurses on the machine's stack, and has no limit."""

# libyaml reads and writes a plan of 10,000 units in seconds; without it all is the same, ten times slower.
_Reader: Any = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
_Writer: Any = getattr(yaml, "CSafeDumper", yaml.SafeDumper)


class _Loader(_Reader):  # type: ignore[misc]
    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Hashable, Any]:
        seen: list[object] = []
        for key_node, _ in node.value:
            key = self.construct_object(key_node, deep=True)
            if key in seen:
                raise yaml.constructor.ConstructorError(
                    None, None, f"the key {key!r} is given twice", key_node.start_mark
                )
            seen.append(key)
        made: dict[Hashable, Any] = super().construct_mapping(node, deep=deep)
        return made


class _Dumper(_Writer):  # type: ignore[misc]
    def ignore_aliases(self, data: object) -> bool:
        return True

    def represent_text(self, text: str) -> yaml.ScalarNode:
        # Unquoted, a line break of Unicode's (NEL, LS, PS) is folded, and NEL comes back as a space.
        style = '"' if any(mark in text for mark in "\x85\u2028\u2029") else None
        scalar: yaml.ScalarNode = self.represent_scalar("tag:yaml.org,2002:str", text, style)
        return scalar


_Dumper.add_representer(str, _Dumper.represent_text)

for _class in (_Loader, _Dumper):
    _class.add_implicit_resolver("tag:yaml.org,2002:float", _FLOAT, list("-+.0123456789"))


def read_validated(path: str | os.PathLike[str], schema: type[Schema]) -> Schema:
    """Read the file at `path` as a `schema`.

    Raises `InvalidInput`, which names the file, each faulty key and what was expected.
    """
    data = _read(Path(path))
    if not isinstance(data, dict):
        keys = ", ".join(schema.model_fields)
        found = "is empty" if data is None else f"holds {'a list' if isinstance(data, list) else 'a single value'}"
        raise InvalidInput(f"{found}; expected a mapping with the keys {keys}", path=str(path))
    if (other := _another_file(data, schema)) is not None:
        raise InvalidInput(other, path=str(path))
    try:
        return schema.model_validate(data)
    except pydantic.ValidationError as error:
        raise InvalidInput.several(problems_of(error, schema, data), path=str(path)) from None


def load_fleet(path: str | os.PathLike[str], remark: Callable[[str], None] | None = None) -> Fleet:
    """Read the fleet of a nodes.yaml.

    `remark` is called with one line for each value that is possible but hardly meant. Raises `InvalidInput`.
    """
    entry = read_validated(path, schema.FleetFile)
    with _naming(path):
        fleet = fleet_from(entry)
    if remark is not None:
        for said in remarks(entry):
            remark(said)
    return fleet


def load_plan(path: str | os.PathLike[str], *, has_run: bool = False, changed: bool = False) -> Plan:
    """Read a plan.yaml and validate the plan as a whole, since it may have been edited by hand.

    With `has_run` the plan is read for the results of its run, so its nodes need not have the memory for it. `changed`:
    it is as a run has it that goes on (`validate`). Raises `InvalidInput`.
    """
    entry = read_validated(path, schema.PlanFile)
    with _naming(path):
        plan = plan_from(entry)
        validate(plan, changed=changed)
        if not has_run:
            require_memory(plan)
        return plan


def holds_plan(path: str | os.PathLike[str]) -> bool:
    """Say whether the file looks like a plan rather than a list of nodes. Raises `InvalidInput` if it is neither."""
    data = _read(Path(path))
    keys = data.keys() if isinstance(data, dict) else set()
    if "clusters" in keys:
        return True
    if "nodes" in keys:
        return False
    raise InvalidInput("is neither a plan.yaml nor a nodes.yaml", path=str(path))


def save_plan(plan: Plan, path: str | os.PathLike[str]) -> None:
    """Write plan.yaml atomically: a reader finds the old file or the whole new one. Raises `InvalidInput`."""
    try:
        text = _text_of(plan_to(plan))
    except yaml.representer.RepresenterError as error:
        raise InvalidInput(f"the job holds a value that YAML cannot: {error.args[-1]!r}", path=str(path)) from None
    _replace(Path(path), text)


def save_fleet(fleet: Fleet, path: str | os.PathLike[str], comments: Iterable[str] = ()) -> None:
    """Write nodes.yaml atomically, with `comments` as lines before everything else. Raises `InvalidInput`."""
    head = "".join(f"# {' '.join(comment.split())}\n" for comment in comments)
    _replace(Path(path), head + _text_of({key: value for key, value in fleet_to(fleet).items() if value}))


def _text_of(data: dict[str, object]) -> str:
    return str(yaml.dump(data, Dumper=_Dumper, sort_keys=False, default_flow_style=None, width=200, allow_unicode=True))


def _replace(target: Path, text: str) -> None:
    try:
        handle, temporary = tempfile.mkstemp(dir=target.parent, prefix=f".{target.name}.", text=True)
    except OSError as error:
        raise InvalidInput(f"cannot be written: {error.strerror}", path=str(target)) from None
    try:
        with os.fdopen(handle, "w", encoding="utf-8") as file:
            file.write(text)
            file.flush()
            os.fsync(file.fileno())
        Path(temporary).chmod(0o644)
        Path(temporary).replace(target)
    except OSError as error:
        Path(temporary).unlink(missing_ok=True)
        raise InvalidInput(f"cannot be written: {error.strerror}", path=str(target)) from None


def _read(path: Path) -> object:
    try:
        text = path.read_text(encoding="utf-8")
    except FileNotFoundError:
        raise InvalidInput(f"no such file{_similar_file(path)}", path=str(path)) from None
    except IsADirectoryError:
        raise InvalidInput("is a folder; expected a YAML file", path=str(path)) from None
    except UnicodeDecodeError:
        raise InvalidInput("is not UTF-8 text", path=str(path)) from None
    except OSError as error:
        raise InvalidInput(f"cannot be read: {error.strerror}", path=str(path)) from None
    try:
        _refuse_deep(text, path)
        return yaml.load(text, Loader=_Loader)
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark or error.context_mark
        where = f"line {mark.line + 1}, column {mark.column + 1}" if mark else None
        raise InvalidInput(f"is not valid YAML: {error.problem or error.context}", path=str(path), key=where) from None
    except (yaml.YAMLError, ValueError) as error:
        if "integer string conversion" in str(error):
            raise InvalidInput("holds a number of too many digits", path=str(path)) from None
        raise InvalidInput(f"is not valid YAML: {' '.join(str(error).split())}", path=str(path)) from None


def _refuse_deep(text: str, path: Path) -> None:
    depth = 0
    for event in yaml.parse(text, Loader=_Reader):
        if isinstance(event, yaml.CollectionStartEvent):
            depth += 1
        elif isinstance(event, yaml.CollectionEndEvent):
            depth -= 1
        if depth > DEEPEST:
            raise InvalidInput(f"is nested too deeply: {DEEPEST} levels at most", path=str(path))


def _another_file(data: Mapping[object, object], wanted: type[pydantic.BaseModel]) -> str | None:
    """Return a message if another kind of file was given, instead of one line for each of its keys."""
    if {"clusters", "rings", "units"} & data.keys():
        found, advice = "a plan", "`ravnest run` takes it"
    elif "nodes" in data:
        found, advice = "a list of nodes", "`ravnest plan` makes a plan for it"
    elif {"model", "data"} <= data.keys():
        found, advice = "a job", "`ravnest plan NODES_YAML --job` takes it"
    elif {"compute_jitter", "link_jitter_ms", "stalls", "stall_rates", "bandwidth"} & data.keys():
        found, advice = "a scenario", "`ravnest simulate --scenario` takes it"
    else:
        return None
    expected = getattr(wanted, "FILE", "a job")
    return None if found == expected else f"is {found} ({advice}); expected {expected}"


def _similar_file(path: Path) -> str:
    if not path.parent.is_dir():
        return f": there is no folder {str(path.parent)!r}"
    close = difflib.get_close_matches(
        path.name, sorted(p.name for p in path.parent.iterdir() if p.is_file()), n=1, cutoff=0.75
    )
    return f"; did you mean {str(path.parent / close[0])!r}?" if close else ""


@contextlib.contextmanager
def _naming(path: str | os.PathLike[str]) -> Iterator[None]:
    """Add the file's path to errors that name only a key."""
    try:
        yield
    except InvalidInput as error:
        raise error.located(str(path)) from None
