"""Which stored tensor each weight of a model starts from.

Decides it by name, for all of them or not at all: whatever is missing, left over, or of another shape or precision is
an error, unless the job says that it is new or ignored. Three differences are no error, because they are how
transformers saves: a base model's prefix on one side, one name for weights that are tied, narrower floats. Pure.
"""

import re
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from fnmatch import fnmatchcase

from ravnest.errors import InvalidInput

WIDER: Mapping[str, tuple[str, ...]] = {"F16": ("F32", "F64"), "BF16": ("F32", "F64"), "F32": ("F64",)}
"""Stored precision → those of a model that hold all its numbers."""

_NAMED = 5  # names that an error lists


@dataclass(frozen=True)
class Form:
    """Shape and precision, in safetensors' words: F32, BF16, I64."""

    shape: tuple[int, ...]
    dtype: str


@dataclass(frozen=True)
class Conventions:
    """What the model's library knows of its checkpoints."""

    same: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    """Weight → other names under which it may be stored, best first: those that it is tied with."""
    dropped: tuple[str, ...] = ()
    """Regular expressions of names that checkpoints hold and models no longer do."""


def match(
    wanted: Mapping[str, Form],
    stored: Mapping[str, Form],
    *,
    new: Sequence[str] = (),
    ignored: Sequence[str] = (),
    conventions: Conventions | None = None,
    whole: bool = False,
) -> dict[str, str]:
    """Each weight's stored name; without those that are missing and `new`.

    new, ignored: patterns (`classifier.*`) of weights that may be missing, and of stored tensors that nobody takes.
    whole: nobody may declare any such, and errors do not advise it.
    Raises InvalidInput, at the name of the first, for missing, surplus, and ambiguous names, and for other forms.
    """
    conventions = conventions or Conventions()
    wrong = next((p for p in new if not any(fnmatchcase(name, p) for name in wanted)), None)
    if wrong is not None:
        raise InvalidInput(f"no weight of the model is called {wrong!r}", key="initial_weights.new")
    stored_as = _translation(wanted, stored)
    found: dict[str, str] = {}
    missing = []
    for name in wanted:
        places = [stored_as(one) for one in (name, *conventions.same.get(name, ()))]
        place = next((place for place in places if place in stored), None)
        if place is not None:
            found[name] = place
        elif not _any(name, new):
            missing.append(name)
    if missing:
        others = "" if len(missing) == 1 else f"; so are {_some(missing[1:])}"
        advice = "" if whole else ". What is to start from the seed instead goes into initial_weights.new"
        raise InvalidInput(f"is missing{others}{advice}", key=missing[0])
    aliases = {stored_as(one) for several in conventions.same.values() for one in several}
    known = {*found.values(), *aliases, *(stored_as(name) for name in conventions.same)}
    surplus = [
        name
        for name in stored
        if name not in known and not _any(name, ignored) and not any(re.search(p, name) for p in conventions.dropped)
    ]
    if surplus:
        others = "" if len(surplus) == 1 else f"; so are {_some(surplus[1:])}"
        advice = "" if whole else ". What is not wanted goes into initial_weights.ignored"
        raise InvalidInput(f"is no weight of the model{others}{advice}", key=surplus[0])
    for name, place in found.items():
        _check(wanted[name], stored[place], place)
    return found


class _Prefix:
    """Stored names lack `lacking`, or have `having` more, than the model's."""

    def __init__(self, lacking: str = "", having: str = "") -> None:
        self.lacking, self.having = lacking, having

    def __call__(self, name: str) -> str:
        return self.having + name.removeprefix(self.lacking)


def _translation(wanted: Collection[str], stored: Collection[str]) -> _Prefix:
    """How names are stored. Another prefix counts only where none of the names that it is about is stored as it is, and
    most are with it: a single name that happens to fit proves nothing."""
    fitting = []
    for prefix in _tops(wanted):
        about = [name for name in wanted if name.startswith(prefix)]
        fitting += [_Prefix(lacking=prefix)] if _fits(_Prefix(lacking=prefix), about, stored) else []
    for prefix in _tops(stored):
        fitting += [_Prefix(having=prefix)] if _fits(_Prefix(having=prefix), list(wanted), stored) else []
    if len(fitting) > 1:
        said = " or ".join(f"without {p.lacking!r}" if p.lacking else f"with {p.having!r}" for p in fitting)
        raise InvalidInput(f"the names fit {said}: which is meant is not clear", key="initial_weights")
    return fitting[0] if fitting else _Prefix()


def _fits(prefix: _Prefix, about: Sequence[str], stored: Collection[str]) -> bool:
    found = sum(prefix(name) in stored for name in about)
    return 2 * found > len(about) and not any(name in stored for name in about)


def _tops(names: Collection[str]) -> list[str]:
    return sorted({f"{name.split('.')[0]}." for name in names if "." in name})


def _check(wanted: Form, stored: Form, place: str) -> None:
    if wanted.shape != stored.shape:
        raise InvalidInput(f"has the shape {stored.shape}; the model's is {wanted.shape}", key=place)
    if wanted.dtype != stored.dtype and wanted.dtype not in WIDER.get(stored.dtype, ()):
        raise InvalidInput(f"is {stored.dtype}; the model's {wanted.dtype} would not hold all its numbers", key=place)


def _any(name: str, patterns: Sequence[str]) -> bool:
    return any(fnmatchcase(name, pattern) for pattern in patterns)


def _some(names: Sequence[str]) -> str:
    more = len(names) - _NAMED
    return ", ".join(names[:_NAMED]) + (f" and {more} more" if more > 0 else "")
