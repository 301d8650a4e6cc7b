import re
from typing import Any, get_args

import pytest
from pydantic import BaseModel
from typer.testing import CliRunner

from cluster_planner.files.schema import FleetFile, PlanFile
from ravnest.cli.explain import MOST_MENTIONS, REFERENCE, Entry, about, entries_of, shown
from ravnest.cli.main import app
from ravnest.errors import InvalidInput
from ravnest.job.config import Job
from tests.support.commands import ROOT


@pytest.fixture(scope="module")
def entries() -> list[Entry]:
    return list(entries_of(REFERENCE.read_text(encoding="utf-8")))


def test_the_reference_of_the_package_is_the_page_of_the_docs() -> None:
    assert REFERENCE.read_bytes() == (ROOT / "docs/file-formats.md").read_bytes()


def test_a_key_is_explained_with_its_place_and_its_default(entries: list[Entry]) -> None:
    (found,) = about("gflops", entries)
    assert found.place == ("nodes.yaml", "nodes")
    assert shown(found).startswith("nodes.yaml › nodes: gflops\nGFLOP/s sustained")
    (batch,) = about("job.micro_batch", entries)
    assert "(default: 8)" in shown(batch)


def test_the_section_before_a_key_chooses_among_those_of_one_name(entries: list[Entry]) -> None:
    both = about("wire", entries)
    assert {entry.place for entry in both} == {("job.yaml",), ("job.yaml", "averaging")}
    (one,) = [entry for entry in about("averaging.wire", entries) if "wire" in entry.keys]
    assert one.place == ("job.yaml", "averaging")


def test_sections_under_which_no_key_is_told_of_are_left_out(entries: list[Entry]) -> None:
    """Errors name `clusters[0].stages[1].units` of plan.yaml, whose reference has `units` in the row of clusters."""
    assert about("clusters.stages.units", entries) == about("units", entries)
    with pytest.raises(InvalidInput):
        about("nowhere.units", entries)


def test_a_section_is_told_whole_and_what_only_text_mentions_too(entries: list[Entry]) -> None:
    assert len(about("constraints", entries)) > 5
    assert about("nodes.yaml", entries)
    assert any("warmup_updates" in entry.text for entry in about("optimizer.schedule", entries))


@pytest.mark.parametrize("key", sorted(Job.model_fields))
def test_each_key_of_a_job_is_explained(entries: list[Entry], key: str) -> None:
    assert any(key in entry.keys or key in entry.place for entry in about(f"job.{key}", entries))


def keys_of(model: type[BaseModel]) -> set[str]:
    """The keys of a file, at any depth."""
    found: set[str] = set()
    seen: set[object] = set()
    left: list[Any] = [model]
    while left:
        each = left.pop()
        left += get_args(each)
        if isinstance(each, type) and issubclass(each, BaseModel) and each not in seen:
            seen.add(each)
            found |= {field.alias or name for name, field in each.model_fields.items()}
            left += [field.annotation for field in each.model_fields.values()]
    return found


@pytest.mark.parametrize("key", sorted(keys_of(FleetFile) | keys_of(Job) | keys_of(PlanFile)))
def test_each_key_of_a_file_is_explained(entries: list[Entry], key: str) -> None:
    assert about(key, entries)


def test_a_key_that_only_an_example_has_is_found_in_it(entries: list[Entry]) -> None:
    assert any("`links` is optional" in entry.text for entry in about("latency_ms", entries))
    assert any(entry.keys == ("checkpoints",) for entry in about("part_gb", entries))
    for nothing in ("", ".", "no"):
        with pytest.raises(InvalidInput):
            about(nothing, entries)


def test_nothing_is_wider_than_a_terminal_and_no_markup_is_left(entries: list[Entry]) -> None:
    texts = [shown(entry) for entry in entries]
    assert not any("](" in text or "```" in text for text in texts)
    assert [line for text in texts for line in text.splitlines() if len(line) > 79 and " " in line.strip()] == []


def test_a_list_is_shown_item_by_item_and_an_example_as_it_is() -> None:
    text = "- the first, " + "long " * 20 + "\n  and on\n- the second\n\n1. one"
    lines = shown(Entry(("here",), (), text)).splitlines()
    assert [line for line in lines if not line.startswith("  ")] == ["here", lines[1], "- the second", "1. one"]
    assert lines[2].startswith("  long") or lines[2].startswith("  and")
    example = "Such as\n```yaml\na:   1\n  - {b: 2}\n```\nor less."
    assert shown(Entry(("here",), (), example)) == "here\nSuch as\na:   1\n  - {b: 2}\nor less.\n"


@pytest.mark.parametrize("name", [".page-token", "metrics.jsonl", "history.jsonl", "summary.json", "driver.json"])
def test_a_file_that_a_run_writes_is_explained_by_its_name(entries: list[Entry], name: str) -> None:
    found = about(name, entries)
    assert any(name in entry.keys for entry in found)
    assert all(entry.place[0] == "What a run writes" for entry in found)
    assert any("`output.log`" in entry.text for entry in about("output.log", entries))


def test_an_unknown_key_is_answered_with_those_that_are_spelt_alike(entries: list[Entry]) -> None:
    with pytest.raises(InvalidInput, match="KEY: no key is called 'gflop'") as caught:
        about("gflop", entries)
    assert "gflops" in (caught.value.hint or "")


@pytest.mark.parametrize(
    ("word", "where"),
    [("mtbf", ("mtbf_hours",)), ("lag", ("max_lag",)), ("staleness", ("max_staleness",)), ("stall", ())],
)
def test_a_part_of_a_key_or_a_word_of_a_description_finds_what_has_it(
    entries: list[Entry], word: str, where: tuple[str, ...]
) -> None:
    found = about(word, entries)
    assert 0 < len(found) <= MOST_MENTIONS
    assert any(entry.keys == where for entry in found)
    assert all(word in f"{entry.keys}{entry.text}".lower() for entry in found)


def test_what_links_lead_to_is_said_so_that_a_reader_at_a_terminal_can_follow(entries: list[Entry]) -> None:
    told = {entry.keys: shown(entry, "data") for entry in entries if entry.place == ("job.yaml",)}
    assert "see below" in " ".join(told["data",].split())
    assert "see `ravnest explain loss-and-metrics`" in " ".join(told["loss",].split())
    assert about("loss-and-metrics", entries)
    assert "volunteers [docs/collaboration.md]" in " ".join(told["mode",].split())
    anchors = {anchor for entry in entries for anchor in re.findall(r"ravnest explain ([\w-]+)`", shown(entry))}
    assert len(anchors) > 5
    for anchor in anchors:
        assert about(anchor, entries), "each is a section of the reference"


@pytest.mark.parametrize("key", ["memory_gb", "nodes[0].memory_gb", "nodes[n0].memory_gb"])
def test_the_command_prints_it_of_a_key_as_errors_name_it_too(key: str) -> None:
    assert "memory that this run may use" in CliRunner().invoke(app, ["explain", key]).stdout
