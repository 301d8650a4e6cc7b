"""docs/page-api.md names each key of what pages answer, and no other."""

import json
import re
from collections.abc import Iterator
from pathlib import Path
from shutil import copytree
from typing import Any

import pytest

from ravnest.collaboration.people import People, Person
from ravnest.driver.observe import report
from ravnest.driver.observe.place_events import NodeJoinedEvent
from ravnest.page.collaboration_view import CURVE, FollowedCollaboration
from ravnest.page.followed_run import FollowedRun
from ravnest.page.prometheus import members_text, metrics_text

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


def names_in(section: str, column: int = 1, *, first: str = "| `") -> list[str]:
    """The names between backticks in a column of the table of a section."""
    text = PAGE.split(f"\n## {section}\n")[1].split("\n## ")[0]
    rows = [row for row in text.splitlines() if row.startswith(first)]
    return [name for row in rows for name in re.findall(r"`([^`]+)`", row.split("|")[column])]


def test_each_key_of_a_view_is_described_and_no_other(document: dict[str, Any]) -> None:
    assert sorted(names_in("/api/view")) == sorted({*paths(document), "problem"})


@pytest.fixture
def collaboration(tmp_path: Path) -> dict[str, Any]:
    """A collaboration of one person, after an evaluation."""
    folder = tmp_path / "together"
    folder.mkdir()
    (folder / "people.json").write_text(People({"ab": Person("ab", "lena", 9)}).text())
    step = {"step": 2, "time_s": 100.0, "seconds": 0.5, "samples_in_all": 18, "peers": 1, "loss": 3.0}
    lines = (json.dumps(step), json.dumps({"step": 2, "held_out": {"loss": 2.5}}))
    (folder / CURVE).write_text("".join(f"{line}\n" for line in lines))
    return FollowedCollaboration(folder, now=lambda: 111.0).document()


def test_each_key_of_members_is_described_and_no_other(collaboration: dict[str, Any]) -> None:
    keys = {at.split(".")[0] if at.startswith("held_out") else at for at in paths(collaboration)}
    assert sorted(names_in("/api/members")) == sorted(keys)


def test_each_figure_for_prometheus_is_named_with_its_labels_and_no_other(
    document: dict[str, Any], collaboration: dict[str, Any]
) -> None:
    host = {"host": "attic", "address": "a:1", "experts": ["0"], "most_experts": 4, "samples_per_s": 9.0}
    hosts = {"name": "moe", "experts": 4, "hosted": 1, "callers": [], "hosts": [{**host, "answer_ms": 8, "updates": 7}]}
    document["rounds"]["planned_bytes"] = document["experts"][0]["wait_s"] = 1  # not known of the recorded run
    for cluster in document["clusters"]:
        cluster["round_trip_s"] = cluster["planned_round_trip_s"] = 0.1
        for stage in cluster["stages"]:
            stage["planned_round_bytes"] = 1
    told = [metrics_text(document), members_text(collaboration), members_text(hosts)]
    figures = {
        (name, tuple(re.findall(r'(\w+)="', labels)))
        for text in told
        for name, labels in re.findall(r"^ravnest_(\w+)\{(.*)\} ", text, re.MULTILINE)
    }
    assert figures == set(_described())


def _described() -> Iterator[tuple[str, tuple[str, ...]]]:
    rows = PAGE.split("\n## /metrics\n")[1].split("|---|---|---|\n")[1].strip().splitlines()
    above: list[str] = []
    for row in rows:
        labels = [name for name in re.findall(r"`([^`]+)`", row.split("|")[2]) if name not in ("_held_out", "measure")]
        above = [*above, *labels] if row.split("|")[2].strip().startswith("and") else labels
        for name in re.findall(r"`([^`]+)`", row.split("|")[3]):
            yield name, (*above, "measure") if name.endswith("_held_out") else tuple(above)
