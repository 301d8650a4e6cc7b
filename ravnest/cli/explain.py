"""`ravnest explain`: what a key of nodes.yaml, job.yaml, plan.yaml or scenario.yaml means, from the file reference.

In: a key, with or without the section that it stands in (`lr`, `optimizer.lr`, `job.optimizer.lr`). Out: the rows of
the reference that are about it, the section of its name, or else what mentions it: keys that it is a part of (`mtbf`),
and descriptions. The text is that of docs/file-formats.md, which comes with the package as file_reference.txt. A link
in it becomes what a reader at a terminal can follow: another `ravnest explain`, or a page of docs/.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from difflib import get_close_matches
from pathlib import Path
from textwrap import fill
from typing import Annotated

import typer

from ravnest.errors import InvalidInput

REFERENCE = Path(__file__).with_name("file_reference.txt")
_WIDTH = 79
_HEADING = re.compile(r"(#{2,3}) (.*)")
_BLOCK = re.compile(r"```yaml\n(.*?)```", re.DOTALL)
_MARK = re.compile(r"- |\d+\. ")
"""How the item of a list begins."""
_CODE = re.compile(r"`([^`]+)`")
_LINK = re.compile(r"\[([^\]]*)\]\(([^)#]*)#?([^)]*)\)")
_SHORTEST = 3
"""Shorter words are in too many descriptions to be looked for there."""
MOST_MENTIONS = 5
_A_SLIP = 0.8
"""A name that is so much like a key, from 0 to 1, is that key with a slip, and not another word."""
_BESIDE_ESCAPED = re.compile(r"(?<!\\)\|")
_PLACE = re.compile(r"(?<=\w)\[[^\]]*\]")
"""A place in a list, as errors name it: that of `nodes[0].gflops`."""


@dataclass(frozen=True)
class Entry:
    """One thing that the reference says. `place` is the headings above it; `keys` are those that a row is about."""

    place: tuple[str, ...]
    keys: tuple[str, ...]
    text: str
    default: str = ""


def entries_of(reference: str) -> Iterator[Entry]:
    """Yields the rows of tables, and the paragraphs and lists (without keys), in their order."""
    place: tuple[str, ...] = ()
    columns: list[str] = []
    for block in re.split(r"\n\s*\n", reference):
        heading = _HEADING.fullmatch(block.strip())
        if heading is not None:
            place = (*place[: len(heading[1]) - 2], heading[2])
        elif block.startswith("|"):
            for number, line in enumerate(block.splitlines()):
                cells = [cell.strip() for cell in _BESIDE_ESCAPED.split(line)[1:-1]]
                if number == 0:
                    columns = cells
                elif number > 1:
                    row = dict(zip(columns, cells, strict=True))
                    keys = tuple(_CODE.findall(cells[0]))
                    yield Entry(place, keys, row.get("meaning", cells[-1]), row.get("default", ""))
        elif block.strip():
            yield Entry(place, (), block.strip())


def about(key: str, entries: Sequence[Entry]) -> list[Entry]:
    """Returns what the reference says about a key.

    Raises InvalidInput, with keys that are spelt alike, where it says nothing.
    """
    found = _about_some_of(key, entries)
    if found:
        return list(dict.fromkeys(found))
    name = key.removesuffix(".yaml").split(".")[-1]
    known = {one for entry in entries for one in (*entry.keys, *(part.removesuffix(".yaml") for part in entry.place))}
    near = get_close_matches(name, known, n=3)
    slip = get_close_matches(name, known, n=1, cutoff=_A_SLIP)
    if not slip and (mentioned := _mentioning(name, entries)):
        return mentioned
    hint = f"did you mean {' or '.join(near)}?" if near else "the whole reference is docs/file-formats.md"
    raise InvalidInput(f"no key is called {key!r}", key="KEY", hint=hint)


def _about_some_of(key: str, entries: Sequence[Entry]) -> list[Entry]:
    """What is about the key. Where nothing is, and it begins with a section, what is about the rest of it."""
    first, dot, rest = key.partition(".")
    found = _about(key, entries)
    return found or (_about_some_of(rest, entries) if dot and _about(first, entries) else [])


def _about(key: str, entries: Sequence[Entry]) -> list[Entry]:
    """What is about the key itself, or uses it in a text or an example."""
    file = [entry for entry in entries if key in (*entry.keys, *entry.place[-1:])]
    if "." in key and file:  # in whose name a dot parts nothing: `metrics.jsonl`, `.page-token`
        return file
    *above, name = key.removesuffix(".yaml").split(".")
    here = [entry for entry in entries if all(_is_under(entry, part) for part in above)]
    found = [entry for entry in here if name in entry.keys]
    found += [entry for entry in here if entry.place and name in (_section(entry), _anchor(entry))]
    found = found or _with_part(name, here)
    if not found:
        found = [entry for entry in here if name in _CODE.findall(entry.text)]
    if not found and name:  # in an example, such as `{between: [a, b], latency_ms: 3.1}`
        written = re.compile(rf"(?<![\w-]){re.escape(name)}(?![\w-])")
        found = [entry for entry in here if any(map(written.search, [*_examples(entry.text), entry.default]))]
    return found or [entry for entry in entries if key in _CODE.findall(entry.text)]


def _section(entry: Entry) -> str:
    return entry.place[-1].removesuffix(".yaml")


def _anchor(entry: Entry) -> str:
    """The section as links name it: `links-and-regions`."""
    return re.sub(r"[^\w-]", "", entry.place[-1].lower().replace(" ", "-"))


def _with_part(name: str, entries: Sequence[Entry]) -> list[Entry]:
    """The rows of keys that have the word among theirs: `mtbf` is one of `mtbf_hours`."""
    part = re.compile(rf"(?<![a-z]){re.escape(name)}(?![a-z])")
    return [entry for entry in entries if name and any(part.search(one) for one in entry.keys)]


def _mentioning(name: str, entries: Sequence[Entry]) -> list[Entry]:
    """The first descriptions with a word that begins so."""
    word = re.compile(rf"\b{re.escape(name)}", re.IGNORECASE)
    return [entry for entry in entries if len(name) >= _SHORTEST and word.search(entry.text)][:MOST_MENTIONS]


def _examples(text: str) -> list[str]:
    blocks = _BLOCK.findall(text)
    return blocks + _CODE.findall(_BLOCK.sub("", text))


def _is_under(entry: Entry, part: str) -> bool:
    names = {name.removesuffix(".yaml") for name in entry.place}
    return part in names or part in entry.keys


def shown(entry: Entry, key: str = "") -> str:
    """Returns an entry as lines for a terminal. Links to what is shown of the same `key` are "below"."""
    where = " › ".join(entry.place)
    default = f" (default: {_plain(entry.default, key)})" if entry.default else ""
    keys = f": {', '.join(entry.keys)}" if entry.keys else ""
    heading = _filled(f"{where}{keys}{default}", hang="    ")
    parts = [_plain(part, key) if part.startswith("```") else _listed(part, key) for part in _parts(entry.text)]
    return "\n".join([heading, *filter(None, parts)]) + "\n"


def _parts(text: str) -> list[str]:
    """An entry's text in pieces: examples, and what stands before and between them."""
    return [part for part in re.split(r"(```yaml\n.*?```)", text, flags=re.DOTALL) if part.strip()]


def _listed(text: str, key: str) -> str:
    """A paragraph, or the items of a list, each filled by itself."""
    items = re.split(r"\n(?=- |\d+\. )", text)
    marks = [_MARK.match(item) for item in items]
    return "\n".join(
        _filled(_plain(" ".join(item.split()), key), hang="" if mark is None else " " * len(mark[0]))
        for item, mark in zip(items, marks, strict=True)
    )


def _filled(text: str, *, hang: str) -> str:
    return fill(text, _WIDTH, subsequent_indent=hang, break_long_words=False, break_on_hyphens=False)


def _plain(text: str, key: str) -> str:
    def followed(link: re.Match[str]) -> str:
        words, page, anchor = link.groups()
        if page:
            return f"{words} [docs/{page}]"
        if anchor == key.removesuffix(".yaml").split(".")[-1]:
            return "below" if words in ("below", anchor) else f"{words}, below"
        return f"`ravnest explain {anchor}`"

    return _LINK.sub(followed, text).replace("\\|", "|").replace("```yaml", "").replace("```", "").strip("\n")


def explain(
    key: Annotated[str, typer.Argument(metavar="KEY", help="Such as gflops, optimizer or job.averaging.wire.")],
) -> None:
    """Say what a key of nodes.yaml, job.yaml, plan.yaml or scenario.yaml means, and its default."""
    key = _PLACE.sub("", key)
    for entry in about(key, list(entries_of(REFERENCE.read_text(encoding="utf-8")))):
        typer.echo(shown(entry, key))
