"""The documents keep the rules of CONTRIBUTING.md: short lines, short pages, links and paths that lead somewhere."""

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[3]
PAGES = sorted((ROOT / "docs").rglob("*.md"))
FILES = [
    *PAGES,
    *(ROOT / name for name in ("README.md", "CHANGELOG.md", "CONTRIBUTING.md")),
    *sorted((ROOT / "examples").glob("*/README.md")),
]
FILES = [file for file in FILES if file.exists()]
MOST_COLUMNS = 120
MOST_WORDS = 1800
REFERENCES = {"docs/file-formats.md", "docs/decisions.md"}  # pages in which one looks things up: they may be longer
FOLDERS = "|".join(sorted(path.name for path in ROOT.iterdir() if path.is_dir() and path.name.isidentifier()))
PATH = re.compile(rf"(?<![\w/.])(?:{FOLDERS})/[\w/.-]*\w\.(?:py|md|yaml|json|png)\b")
LINK = re.compile(r"\]\(([^)#\s]+)(?:#[^)]*)?\)")


def name(file: Path) -> str:
    return file.relative_to(ROOT).as_posix()


def prose(file: Path) -> list[tuple[int, str]]:
    """The numbered lines that can be broken: not the rows of tables, nor formulas in fences."""
    lines, fenced = [], False
    for number, line in enumerate(file.read_text(encoding="utf-8").splitlines(), 1):
        if line.lstrip("> ").startswith("```"):
            fenced = not fenced and line.lstrip("> ").startswith("```math")
        elif not fenced and not line.startswith("|"):
            lines.append((number, line))
    return lines


@pytest.mark.parametrize("file", FILES, ids=name)
def test_lines_are_short(file: Path) -> None:
    assert [(number, len(line)) for number, line in prose(file) if len(line) > MOST_COLUMNS] == []


@pytest.mark.parametrize("file", [file for file in FILES if name(file) not in REFERENCES], ids=name)
def test_a_page_can_be_read_at_one_sitting(file: Path) -> None:
    words = file.read_text(encoding="utf-8").split()
    assert sum(any(map(str.isalnum, word)) for word in words) <= MOST_WORDS


@pytest.mark.parametrize("file", FILES, ids=name)
def test_each_file_that_is_named_exists(file: Path) -> None:
    text = LINK.sub("", file.read_text(encoding="utf-8"))  # links are relative to their page
    assert sorted(path for path in set(PATH.findall(text)) if not (ROOT / path).exists()) == []


@pytest.mark.parametrize("file", [file for file in FILES if file not in PAGES], ids=name)
def test_links_lead_to_files(file: Path) -> None:
    """Links between the pages of docs/, with their anchors, are checked by `make docs`."""
    links = [link for link in LINK.findall(file.read_text(encoding="utf-8")) if "://" not in link]
    assert [link for link in links if not (file.parent / link).exists()] == []
