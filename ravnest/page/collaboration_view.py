"""What a page shows of a collaboration: its people, its steps and its loss. The folder of the backbone is only read.

In: people.json and curve.jsonl, as the backbone writes them. Out: one document of plain data. A line that says what no
backbone says is left out.
"""

import json
import time
from collections.abc import Callable, Mapping
from dataclasses import asdict
from pathlib import Path

from ravnest.collaboration.people import FILE, Person, read_people
from ravnest.errors import InvalidInput
from ravnest.formatting import json_value
from ravnest.page.curves import Curve
from ravnest.page.stage_view import number
from ravnest.results.run_log import lines_since

CURVE = "curve.jsonl"
_MOST_POINTS = 400
_MOST_PEOPLE = 500
_KEY_CHARACTERS = 16


def is_collaboration(folder: Path) -> bool:
    """Whether a folder is a backbone's."""
    return (folder / "keys.json").exists() and not (folder / "plan.yaml").exists()


class FollowedCollaboration:
    """One collaboration. Its methods are called by one thread at a time."""

    def __init__(self, folder: Path, now: Callable[[], float] = time.time) -> None:
        """`now`: seconds since 1970, by which the backbone's lines are dated."""
        self._folder, self._now, self._at = folder, now, 0
        self._begin()

    def _begin(self) -> None:
        self._last: Mapping[str, object] = {}
        self._held_out: dict[str, object] | None = None
        self._losses = Curve(_MOST_POINTS, samples_at=0)  # what is made again after a crash is shown once

    def document(self) -> dict[str, object]:
        """Everything that the page shows, as of now."""
        lines, at = lines_since(self._folder / CURVE, self._at)
        if at < self._at:
            self._begin()
        self._at = at
        for line in lines:
            self._take(line)
        last, written_s = self._last, number(self._last.get("time_s"))
        people, problem = self._people()
        found = json_value(
            {
                "version": 1,
                "kind": "collaboration",
                "name": self._folder.resolve().name,
                "problem": problem,
                "steps": last.get("step", 0),
                "samples": last.get("samples_in_all", 0),
                "loss": last.get("loss"),
                "volunteers": last.get("peers", 0),
                "step_s": last.get("seconds"),
                "age_s": None if written_s is None else max(0.0, self._now() - written_s),
                "held_out": self._held_out,
                "people": [asdict(one) | {"key": one.key[:_KEY_CHARACTERS]} for one in people[:_MOST_PEOPLE]],
                "people_in_all": len(people),
                "curve": self._losses.points,
            }
        )
        return found if isinstance(found, dict) else {}

    def _people(self) -> tuple[list[Person], str | None]:
        try:
            return read_people(self._folder).ranked(), None
        except (InvalidInput, OSError) as error:
            return [], f"{FILE} cannot be read: {error}"

    def _take(self, line: str) -> None:
        try:
            entry = json.loads(line)
        except (ValueError, RecursionError):
            return
        if not isinstance(entry, dict):
            return
        if isinstance(entry.get("held_out"), dict):
            self._held_out = {str(name): number(value) for name, value in entry["held_out"].items()}
        samples, loss = number(entry.get("samples_in_all")), number(entry.get("loss"))
        if samples is not None:
            self._last = entry
            if loss is not None:
                self._losses.add(samples, loss)
