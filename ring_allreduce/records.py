"""How events and instructions are made: plain data with slots, of which a simulation makes millions a minute.

Decides that what type checkers refuse (assigning to a field) is not refused again at run time: a frozen dataclass takes
three times as long to make. Equal by value, and hashable.
"""

from dataclasses import dataclass
from typing import TypeVar, dataclass_transform

T = TypeVar("T")


@dataclass_transform(frozen_default=True)
def record(cls: type[T]) -> type[T]:
    """A class of records: its fields as in a dataclass. Never assign to one after it is made."""
    return dataclass(slots=True, unsafe_hash=True)(cls)
