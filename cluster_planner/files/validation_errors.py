"""Translation of pydantic's findings into the words of the person who wrote the file.

In: a pydantic.ValidationError, the schema and the data. Out: pairs of key and message. The key is written as a person
would point to it (`nodes[2].up_mbps`). The message says what was expected and what was found, and names the known key
that an unknown one resembles.
"""

import difflib
import re
import types
from collections.abc import Mapping, Sequence
from typing import Annotated, Union, get_args, get_origin

import pydantic

_EXPECTED = {
    "float_type": "must be a number",
    "int_type": "must be a whole number",
    "int_from_float": "must be a whole number",
    "float_parsing": "must be a number",
    "int_parsing": "must be a whole number",
    "int_parsing_size": "is too large",
    "invalid_key": "keys must be text",
    "string_type": "must be text",
    "bool_type": "must be true or false",
    "bool_parsing": "must be true or false",
    "list_type": "must be a list",
    "tuple_type": "must be a list",
    "dict_type": "must be a mapping",
    "model_type": "must be a mapping",
    "model_attributes_type": "must be a mapping",
    "finite_number": "must be a finite number",
    "greater_than": "must be above {gt:g}",
    "greater_than_equal": "must be {ge:g} or more",
    "less_than": "must be below {lt:g}",
    "less_than_equal": "must be {le:g} or less",
    "string_too_short": "must not be empty",
    "string_pattern_mismatch": "must match {pattern}",
    "literal_error": "must be {expected}",
    "too_short": "needs {min_length} or more entries",
    "too_long": "takes {max_length} entries",
}
_OF_A_SCALAR = {"literal_error", "string_type", "float_type", "int_type", "bool_type"}


def problems_of(
    error: pydantic.ValidationError, schema: type[pydantic.BaseModel], data: object
) -> list[tuple[str | None, str]]:
    """Return `(key, message)` for each thing that is wrong in `data`, in the order of the schema.

    Alternatives of one key are joined, except those of a scalar where a mapping was meant. A required key that is only
    misspelt is not reported as missing as well.
    """
    messages: dict[str | None, list[str]] = {}
    required, misspelt = {}, []
    details = error.errors(include_url=False)
    places = [_within(detail["loc"], data, detail["type"]) for detail in details]
    for detail, location in zip(details, places, strict=True):
        deeper = any(len(other) > len(location) and other[: len(location)] == location for other in places)
        if deeper and detail["type"] in _OF_A_SCALAR and isinstance(detail["input"], Mapping):
            continue  # an alternative that was not meant: another one was, and its parts are complained of
        key = dotted(location)
        message = _message(detail, schema, location)
        if detail["type"] == "missing":
            required[key] = message
        if detail["type"] == "extra_forbidden" and (meant := _meant(schema, location)) is not None:
            misspelt.append(dotted([*location[:-1], meant]))
        known = messages.setdefault(key, [])
        if message not in known:
            known.append(message)
    for key in misspelt:
        if messages.get(key) == [required.get(key)]:
            del messages[key]
    return [(key, _either(lines)) for key, lines in messages.items()]


def _either(lines: Sequence[str]) -> str:
    """Alternatives in one sentence, in which what was found is said once."""
    wanted, found = zip(*(line.removeprefix("must be ").rpartition(", not ")[::2] for line in lines), strict=True)
    if all(line.startswith("must be ") for line in lines) and all(wanted) and len(set(found)) == 1:
        words = [word for each in wanted for word in re.split(", | or ", each)]
        are_words = all(word.startswith("'") and word.endswith("'") for word in words)
        alternatives = (
            f"{', '.join(words[:-1])} or {words[-1]}" if are_words and len(words) > 1 else ", or ".join(wanted)
        )
        return f"must be {alternatives}, not {found[0]}"
    return ", or ".join(lines)


def dotted(location: Sequence[str | int]) -> str | None:
    """Write the location ("nodes", 2, "up_mbps") as nodes[2].up_mbps; return None for the file itself."""
    text = ""
    for part in location:
        text += f"[{part}]" if isinstance(part, int) else f".{part}" if text else part
    return text or None


def _message(detail: Mapping[str, object], schema: type[pydantic.BaseModel], location: Sequence[str | int]) -> str:
    kind, found = str(detail["type"]), detail["input"]
    context = detail.get("ctx", {})
    assert isinstance(context, Mapping)
    if kind == "missing":
        return "is required and missing"
    if kind == "extra_forbidden":
        meant = _meant(schema, location)
        if meant is not None:
            return f"is not a known key; did you mean {meant!r}?"
        known = _known_keys(_model_at(schema, location[:-1]))
        return "is not a known key" + (f"; known keys are {', '.join(known)}" if known else "")
    if kind in ("value_error", "assertion_error"):
        return str(context.get("error", detail["msg"]))
    if kind == "float_type" and type(found) is int:
        return "is too large"
    expected = _EXPECTED.get(kind)
    text = str(detail["msg"]) if expected is None else expected.format(**context)
    if kind in ("too_short", "too_long"):
        if kind == "too_short" and context.get("min_length") == 1:
            return "needs at least one entry"
        return f"{text}, not {context.get('actual_length')}"
    return text if kind == "string_too_short" else f"{text}, not {_shown(found)}"


def _meant(schema: type[pydantic.BaseModel], location: Sequence[str | int]) -> str | None:
    """Return the known key that an unknown one resembles."""
    close = difflib.get_close_matches(str(location[-1]), _known_keys(_model_at(schema, location[:-1])), n=1)
    return close[0] if close else None


def _known_keys(model: type[pydantic.BaseModel] | None) -> list[str]:
    return [] if model is None else [field.alias or name for name, field in model.model_fields.items()]


def _shown(value: object) -> str:
    kinds: list[tuple[type, str]] = [(Mapping, "a mapping"), (list, "a list")]
    for kind, name in kinds:
        if isinstance(value, kind):
            return name
    if value is None:
        return "nothing"
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, str):
        return f"the text {value[:60]!r}"
    text = repr(value)
    return text if len(text) <= 60 else f"{text[:60]}…"


def _within(location: Sequence[str | int], data: object, kind: str) -> list[str | int]:
    """Return the part of pydantic's location that points into `data`; pydantic also names the branches of a union."""
    kept: list[str | int] = []
    for i, part in enumerate(location):
        last = i == len(location) - 1
        inside = part in data if isinstance(data, Mapping) else isinstance(data, list) and part in range(len(data))
        if inside:
            data = data[part]  # type: ignore[index]
        elif not (last and kind == "missing"):
            continue
        kept.append(part)
    return kept


def _model_at(schema: type[pydantic.BaseModel], location: Sequence[str | int]) -> type[pydantic.BaseModel] | None:
    """Return the model that a location inside `schema` is validated by: its only candidate, or the first one."""
    candidates: list[object] = [schema]
    for part in location:
        models = [m for c in candidates for m in _models(c)]
        if isinstance(part, int):
            candidates = [a for c in candidates for a in _items(c)]
        else:
            candidates = [m.model_fields[part].annotation for m in models if part in m.model_fields] or [
                a for c in candidates for a in _items(c)
            ]
    found = [m for c in candidates for m in _models(c)]
    return found[0] if found else None


def _alternatives(annotation: object) -> list[object]:
    origin = get_origin(annotation)
    if origin in (Union, types.UnionType):
        return [a for arg in get_args(annotation) for a in _alternatives(arg)]
    if origin is Annotated:
        return _alternatives(get_args(annotation)[0])
    return [annotation]


def _models(annotation: object) -> list[type[pydantic.BaseModel]]:
    return [a for a in _alternatives(annotation) if isinstance(a, type) and issubclass(a, pydantic.BaseModel)]


def _items(annotation: object) -> list[object]:
    """Return what the entries of a list, or the values of a mapping, may be."""
    return [arg for a in _alternatives(annotation) for arg in get_args(a)]
