"""Parameter groups: the `optimizer.groups` of a job, which say what is different for some parameters.

In: the groups and the names of parameters. Out: the group of each. The first group that matches a name counts, and
parameters that none matches follow the section itself.
"""

from collections.abc import Mapping, Sequence
from fnmatch import fnmatchcase
from typing import Annotated

from pydantic import BeforeValidator, ConfigDict, Field, model_validator

from ravnest.errors import InvalidInput
from ravnest.job_sections import PositiveFloat, Section


def _several(value: object) -> object:
    return (value,) if isinstance(value, str) else value


class GroupConfig(Section):
    """One of `optimizer.groups`. Any other key is an argument of the torch.optim class, for these parameters."""

    model_config = ConfigDict(extra="allow")

    match: Annotated[tuple[str, ...], BeforeValidator(_several), Field(min_length=1)]
    """A pattern of parameter names (`*.bias`), or several; `*` stands for anything, dots included."""

    name: str | None = None
    """Another optimizer for these parameters, which then takes none of the section's arguments."""

    lr: PositiveFloat | None = None
    """Their peak learning rate, which follows the same schedule. Without it, the section's."""

    @model_validator(mode="before")
    @classmethod
    def _is_no_section(cls, data: object) -> object:
        of_section = ("schedule", "clip_norm", "correction", "groups")
        wrong = [key for key in of_section if isinstance(data, Mapping) and key in data]
        if wrong:
            raise ValueError(f"a group has no {wrong[0]} of its own: it follows the section's")
        return data

    @property
    def arguments(self) -> dict[str, object]:
        """The keys that are passed on to the torch.optim class."""
        return dict(self.model_extra or {})


def check_groups(groups: Sequence[GroupConfig], names: Sequence[str]) -> None:
    """Raises InvalidInput at a group or a pattern that none of `names`, all trained parameters, is left for."""
    for place, group in enumerate(groups):
        key = f"optimizer.groups[{place}].match"
        for pattern in group.match:
            if not any(fnmatchcase(name, pattern) for name in names):
                raise InvalidInput(f"{pattern!r} matches no parameter that is trained", key=key)
        if not any(group_of(groups, name) == place for name in names):
            raise InvalidInput("matches only parameters of earlier groups, and the first that matches counts", key=key)


def group_of(groups: Sequence[GroupConfig], name: str) -> int:
    """The place of a parameter's group; the number of groups where none matches."""
    matching = (place for place, group in enumerate(groups) if any(fnmatchcase(name, p) for p in group.match))
    return next(matching, len(groups))
