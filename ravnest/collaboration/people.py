"""Who gave how many samples: the leaderboard of a collaboration, by public key, in people.json of its folder.

In: contributions that were counted. Out: a table, most samples first, that outlives the backbone's process. A key costs
nothing, so who comes under one and gives nothing is forgotten when it leaves. What was added to a step that is not
committed yet counts for who has given it, though it may have left meanwhile.
"""

import json
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path

from ravnest.errors import InvalidInput

FILE = "people.json"


@dataclass
class Person:
    """What one public key has given. `name`: the last one under which it came."""

    key: str
    name: str
    samples: int = 0
    steps: int = 0
    visits: int = 0
    refused: int = 0
    """Contributions that could not be one."""
    scaled: int = 0
    """Contributions that deviated from the mean by more than is allowed, and counted for less."""


_KINDS = {"key": str, "name": str, "samples": int, "steps": int, "visits": int, "refused": int, "scaled": int}


class People:
    """All who came to a collaboration."""

    def __init__(self, people: dict[str, Person] | None = None) -> None:
        self._people = people or {}
        self._here: Counter[str] = Counter()
        self._given: dict[str, Person] = {}  # by visit: whose contributions are in the step that is under way

    def came(self, key: str, name: str) -> Person:
        """Somebody has come; who has come before keeps what was given."""
        person = self._people.setdefault(key, Person(key, name))
        person.name = name
        person.visits += 1
        self._here[key] += 1
        return person

    def left(self, person: Person) -> None:
        """Somebody who came has left again."""
        self._here[person.key] -= 1
        if self._here[person.key] <= 0:
            del self._here[person.key]
            self._forget_if_useless(person)

    def gave(self, visit: str, person: Person) -> None:
        """A contribution of this visit was added to the step that is under way."""
        self._given[visit] = person

    def committed(self, samples: Mapping[str, int]) -> None:
        """The step was committed, and holds so many samples by visit."""
        given, self._given = self._given, {}
        for visit, person in given.items():
            if visit in samples:
                person.samples += samples[visit]
                person.steps += 1
            self._forget_if_useless(person)

    def scaled(self, keys: Iterable[str]) -> None:
        """A contribution of each of these people was scaled down."""
        for key in keys:
            self._people[key].scaled += 1

    def _forget_if_useless(self, person: Person) -> None:
        useful = person.samples or person.refused or person.scaled
        if not useful and person.key not in self._here and person not in self._given.values():
            self._people.pop(person.key, None)

    def ranked(self) -> list[Person]:
        """All of them, most samples first."""
        return sorted(self._people.values(), key=lambda one: (-one.samples, one.name, one.key))

    def text(self) -> str:
        """The content of people.json."""
        return json.dumps([asdict(person) for person in self.ranked()], indent=1) + "\n"


def read_people(folder: Path) -> People:
    """The people of a collaboration's folder; nobody where it has no people.json. Raises InvalidInput."""
    path = folder / FILE
    return parsed_people(path.read_bytes(), path) if path.exists() else People()


def parsed_people(data: bytes, path: Path) -> People:
    """The people in the content of a people.json; `path` is named in errors. Raises InvalidInput."""
    try:
        listed = [Person(**entry) for entry in json.loads(data.decode())]
        if any(type(getattr(one, key)) is not kind for one in listed for key, kind in _KINDS.items()):
            raise TypeError
    except (ValueError, TypeError, RecursionError) as error:
        raise InvalidInput("expected a list of people, as ravnest collaborate writes it", path=str(path)) from error
    return People({person.key: person for person in listed})
