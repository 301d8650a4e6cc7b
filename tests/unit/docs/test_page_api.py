"""docs/page-api.md names each key of what pages answer, and no other."""

import json
import re
from collections.abc import Iterator
from pathlib import Path
from shutil import copytree
from typing import Any

import pytest

from ravnest.driver.observe import report
from ravnest.driver.observe.place_events import NodeJoinedEvent
from ravnest.page.followed_run import FollowedRun

ROOT = Path(__file__).parents[3]
PAGE = (ROOT / "docs/page-api.md").read_text(encoding="utf-8")
BY_NAME = {"baselines", "held_out.metrics", "curves.loss", "curves.held_out", "rounds.slowest_hop"}
"""What stands there by names that a user gives, or has the keys of another row."""


def paths(value: Any, at: str = "") -> Iterator[str]:
    """The dotted names of everything in a document."""
    if at in BY_NAME:
        yield at
    elif isinstance(value, dict):
        for key, each in value.items():
            yield from paths(each, f"{at}.{key}" if at else key)
    elif isinstance(value, list) and value and isinstance(value[0], dict):
        for each in value:
            yield from paths(each, at)
    elif at:
        yield at


@pytest.fixture
def document(tmp_path: Path) -> dict[str, Any]:
    """The recorded run, with hosts of experts, and a node that has joined."""
    folder = copytree(ROOT / "tests/support/recorded_run", tmp_path / "home")
    host = {"host": "attic", "experts": 3, "most_experts": 4, "samples_per_s": 9.0, "answer_s": 0.1, "updates": 7}
    asked = {"grid": "moe", "places": 4, "stages": {}, "hosts": [host]}
    joined = NodeJoinedEvent("tablet", False, 1e9, 4_000_000_000, 1e6, 1e6)
    with (folder / "metrics.jsonl").open("a", encoding="utf-8") as file:
        file.write(json.dumps({"kind": "experts", "at_s": 200.0, "grids": [asked]}) + "\n")
        file.write(json.dumps({"kind": "joined", "at_s": 200.0, **report.as_plain(joined)}) + "\n")
    run = FollowedRun(folder, report.kind_of)
    run.look()
    return {**run.document(), "curves": run.curves()}


def test_each_key_of_a_view_is_described_and_no_other(document: dict[str, Any]) -> None:
    table = PAGE.split("## /api/view")[1].split("\n## ")[0]
    described = re.findall(r"`([^`]+)`", "\n".join(row.split("|")[1] for row in table.splitlines() if "| `" in row))
    assert sorted(described) == sorted({*paths(document), "problem"})
