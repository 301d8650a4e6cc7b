"""What code, documents and messages cite exists: sections of the design, decisions, pages and their anchors.

There is one form for each: design §7 (or §4.5, or §11.3 for the third item of section 11), decision 12,
docs/limits.md or docs/networks.md#ports, and docs/theory.md, section 3.
"""

import re
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import pytest

import ravnest

ROOT = Path(__file__).parents[3]
KINDS = (".py", ".md", ".yaml", ".toml")
LEFT_OUT = {"build", "runs"}
CHAIN = re.compile(r"\b[Dd]esign (§\d+(?:\.\d+)?(?:(?:, | and )§\d+(?:\.\d+)?)*)")
DECISION = re.compile(r"\b[Dd]ecisions? (\d+)\b")
PAGE = re.compile(r"\bdocs/([\w/-]+\.md)(?:#([\w-]+)|, section (\d+))?")
HEADING = re.compile(r"^#+ (.*?)(?: *\{.*\})?$", re.MULTILINE)


def files() -> Iterator[Path]:
    for folder in sorted(path for path in ROOT.iterdir() if path.name.isidentifier() and path.name not in LEFT_OUT):
        found = (path for path in sorted(folder.rglob("*")) if path.suffix in KINDS)
        yield from (path for path in found if path.name != "RESULT.md")  # of the commit that was measured
    yield from (path for path in sorted(ROOT.iterdir()) if path.suffix in KINDS)


@cache
def texts() -> dict[str, str]:
    """Every text of the repository but this one, each on one line, so that a mention may wrap."""
    wrap = re.compile(r"\s*\n\s*(?:#:? |> )?\s*")
    return {
        path.relative_to(ROOT).as_posix(): wrap.sub(" ", path.read_text(encoding="utf-8"))
        for path in files()
        if path != Path(__file__)
    }


@cache
def sections(page: str) -> set[str]:
    """The numbers of a page's sections, and N.M of the M-th item where section N is a numbered list."""
    numbers, current = set(), ""
    for line in (ROOT / "docs" / page).read_text(encoding="utf-8").splitlines():
        if heading := re.match(r"#+ (\d+(?:\.\d+)?)\.? ", line):
            current = heading[1]
            numbers.add(current)
        elif current and (item := re.match(r"(\d+)\. ", line)):
            numbers.add(f"{current}.{item[1]}")
    return numbers


@cache
def anchors(page: str) -> set[str]:
    text = (ROOT / "docs" / page).read_text(encoding="utf-8")
    slugs = {
        re.sub(r"[\s-]+", "-", re.sub(r"[^\w\s-]", "", title).strip().lower()) for _, title in HEADING.findall(text)
    }
    return slugs | set(re.findall(r'<a id="([\w-]+)">', text))


def decisions() -> set[str]:
    pages = (ROOT / "docs/decisions").glob("*.md")
    return {number for page in pages for number in sections(f"decisions/{page.name}")}


def cited(pattern: re.Pattern[str]) -> list[tuple[str, re.Match[str]]]:
    return [(name, found) for name, text in texts().items() for found in pattern.finditer(text)]


def test_each_section_of_the_design_that_is_cited_exists() -> None:
    numbers = [(name, number) for name, found in cited(CHAIN) for number in re.findall(r"§(\S+?)(?=[, ]|$)", found[1])]
    assert len(numbers) > 20, "the form of citations has changed: this test finds none"
    assert [(name, number) for name, number in numbers if number not in sections("design.md")] == []


def test_sections_are_cited_in_one_form() -> None:
    """A § belongs to the design, and says so."""
    bare = [name for name, text in texts().items() if "§" in CHAIN.sub("", text)]
    assert [name for name in bare if name != "docs/design.md"] == []
    assert [name for name, _ in cited(re.compile(r"section \d+ of the design|[Dd]esign,? section \d+"))] == []


def test_each_decision_that_is_cited_exists() -> None:
    assert [(name, found[1]) for name, found in cited(DECISION) if found[1] not in decisions()] == []


def test_decisions_are_numbered_once_and_listed() -> None:
    pages = sorted((ROOT / "docs/decisions").glob("*.md"))
    headings = [re.findall(r"^## (\d+)\. (.+)$", page.read_text(encoding="utf-8"), re.MULTILINE) for page in pages]
    numbers = [int(number) for found in headings for number, _ in found]
    assert len({*numbers}) == len(numbers), "numbers may be left out, and are never given twice"
    index = (ROOT / "docs/decisions.md").read_text(encoding="utf-8")
    for page, found in zip(pages, headings, strict=True):
        for number, title in found:
            assert f"| {number} | [{title}](decisions/{page.name}#decision-{number})" in index
            assert f'<a id="decision-{number}"></a>' in page.read_text(encoding="utf-8")


def test_each_page_anchor_and_section_that_is_cited_exists() -> None:
    missing = []
    for name, found in cited(PAGE):
        page, anchor, section = found.groups()
        if not (ROOT / "docs" / page).exists():
            missing.append((name, page))
        elif (anchor and anchor not in anchors(page)) or (section and section not in sections(page)):
            missing.append((name, found[0]))
    assert missing == []


def test_each_test_that_a_page_names_exists() -> None:
    named = [(name, *found.groups()) for name, found in cited(re.compile(r"\b(tests/[\w/]+\.py)::(test_\w+)"))]
    assert len(named) > 20, "the threat model names the tests that hold it"
    gone = [
        (name, file, test)
        for name, file, test in named
        if not re.search(rf"^(?:async )?def {test}\(", (ROOT / file).read_text(encoding="utf-8"), re.MULTILINE)
    ]
    assert gone == []


def test_each_deadline_is_where_its_row_says() -> None:
    text = (ROOT / "docs/deadlines.md").read_text(encoding="utf-8")
    rows = [row.strip("| ").split(" | ") for row in text.splitlines() if row.startswith("| ")][1:]
    for waited_for, deadline, where in rows:
        assert re.search(r"\d|timeout_s", deadline), waited_for
        files = re.findall(r"`([\w/]+\.py)`", where)
        names = [name.split(".")[-1] for name in re.findall(r"`([A-Za-z_]\w*(?:\.\w+)?)`", where)]
        code = " ".join((ROOT / file).read_text(encoding="utf-8") for file in files)
        assert names, waited_for
        assert [name for name in names if not re.search(rf"\b{name}\b", code)] == [], waited_for


@pytest.mark.parametrize("name", ["README.md", "docs/python.md"])
def test_the_python_that_is_shown_uses_the_door(name: str) -> None:
    text = re.sub(r"\S+\.md", "", (ROOT / name).read_text(encoding="utf-8"))
    shown = set(re.findall(r"\bravnest\.([A-Za-z_]\w*)", text))
    assert shown
    assert sorted(word for word in shown if not hasattr(ravnest, word)) == []
