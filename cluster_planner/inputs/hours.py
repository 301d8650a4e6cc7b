"""Hours of the day at which a node is there, in UTC.

Decides how they are written (`18-24`, or `22-6, 12-13`: whole hours, over midnight where the first is the larger) and
what nodes have in common. A set of hours is a number: bit h is set if the node is there from h to h + 1. Knows neither
days of the week nor a clock.
"""

import re
from collections.abc import Iterable
from functools import reduce
from operator import and_

DAY = 24
ALL_DAY = (1 << DAY) - 1

_RANGE = re.compile(r"(\d{1,2})-(\d{1,2})")


def hours_from(text: str) -> int:
    """The hours that a text names. Raises `ValueError` with what was expected."""
    hours = 0
    for part in text.split(","):
        match = _RANGE.fullmatch(part.strip())
        first, last = (int(end) for end in match.groups()) if match else (0, 0)
        if match is None or first == last or first >= DAY or last > DAY:
            raise ValueError(f"must be whole hours of the day in UTC, such as 18-24 or 22-6, not {text!r}")
        hours |= sum(1 << hour % DAY for hour in range(first, last if first < last else last + DAY))
    return hours


def hours_to(hours: int) -> str:
    """The text that `hours_from` reads as these hours, as short as can be."""
    if hours == ALL_DAY:
        return "0-24"
    starts = [hour for hour in range(DAY) if hours >> hour & 1 and not hours >> (hour - 1) % DAY & 1]
    parts = []
    for start in starts:
        end = start
        while hours >> end % DAY & 1:
            end += 1
        parts.append(f"{start}-{end if end <= DAY else end - DAY}")
    return ", ".join(parts)


def common(several: Iterable[int]) -> int:
    """The hours that all of them have."""
    return reduce(and_, several, ALL_DAY)


def part_of_day(hours: int) -> float:
    """How much of a day they are: from 0 to 1."""
    return hours.bit_count() / DAY
