"""What an experiment leaves behind: RESULT.md, result.json and a picture, always made from the same stored parts.

Decides their form only. Each part is stored with its own command, machine and date, so that running one part again
keeps the others' last results. All three files are replaced at once or not at all.
"""

import dataclasses
import json
import math
import os
import platform
import subprocess
import tempfile
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from importlib import metadata
from pathlib import Path
from typing import Any

import psutil
from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure

ROOT = Path(__file__).parents[2]
PACKAGES = ("torch", "pyzmq", "numpy")
Cell = str | int | float | None
LONG_LABEL = 10
"""Characters: words below bars that are longer stand at a slant, so that they do not run into each other."""


@dataclass(frozen=True)
class Claim:
    """One sentence that figures bear out or not. `held` is None when this run could not measure it."""

    name: str
    statement: str
    target: str
    measured: str
    held: bool | None


@dataclass(frozen=True)
class Table:
    title: str
    columns: Sequence[str]
    rows: Sequence[Sequence[Cell]]


@dataclass(frozen=True)
class Series:
    """One line of a panel, or one group of bars when `x` holds words. `low`, `high`: the spread of `y`."""

    label: str
    x: Sequence[float] | Sequence[str]
    y: Sequence[float]
    low: Sequence[float] = ()
    high: Sequence[float] = ()


@dataclass(frozen=True)
class Panel:
    """One drawing of the picture; `target` is a horizontal line."""

    title: str
    x_label: str
    y_label: str
    series: Sequence[Series]
    log_x: bool = False
    log_y: bool = False
    target: float | None = None
    diagonal: bool = False
    """Points that are not joined, beside the line on which y is x."""


@dataclass(frozen=True)
class Part:
    """What one part of an experiment found. `notes`: how it was measured, what was left out and why."""

    name: str
    title: str
    claims: Sequence[Claim]
    tables: Sequence[Table] = ()
    panels: Sequence[Panel] = ()
    notes: Sequence[str] = ()


def machine() -> dict[str, str]:
    """The machine and the versions that figures depend on; call it before any work starts, for the load's sake."""
    load = ", ".join(f"{one:.2f}" for one in os.getloadavg())
    return {
        "cpu": f"{_cpu_model()}, {psutil.cpu_count()} cores",
        "memory": f"{psutil.virtual_memory().total / 2**30:.0f} GiB",
        "system": f"{platform.system()} {platform.release()}",
        "python": platform.python_version(),
        **{package: metadata.version(package) for package in PACKAGES},
        "commit": commit(),
        "load before (1, 5, 15 min)": load,
    }


class Report:
    """The results of one experiment in one folder."""

    def __init__(self, folder: Path, title: str, intro: str) -> None:
        """Reads what earlier runs left in `folder`. Raises ValueError when that is no result of this program."""
        self.folder = folder
        self._title = title
        self._intro = intro
        self._stored = self._kept()

    def record(
        self, part: Part, *, command: str, machine: Mapping[str, str], seconds: float, order: Sequence[str]
    ) -> None:
        """Keep `part` in the place of its last result, and write all files. `order`: the parts' names, as shown.

        A part that is not in `order` is dropped: it no longer exists. What others wrote meanwhile stays.
        """
        self._stored = self._kept()
        self._stored[part.name] = {
            **dataclasses.asdict(part),
            "tables": [_storable(table) for table in part.tables],
            "command": command,
            "machine": dict(machine),
            "date": datetime.now(UTC).isoformat(timespec="seconds"),
            "seconds": round(seconds, 1),
        }
        self._stored = {name: self._stored[name] for name in order if name in self._stored}
        self.folder.mkdir(parents=True, exist_ok=True)
        document = json.dumps(self.document, indent=1, allow_nan=False)
        _replace(self.folder / "result.json", lambda path: path.write_text(document + "\n", encoding="utf-8"))
        if panels := self._panels:
            _replace(self.folder / "result.png", lambda path: _draw(panels, path))
        _replace(self.folder / "RESULT.md", lambda path: path.write_text(self._markdown(), encoding="utf-8"))

    @property
    def document(self) -> dict[str, Any]:
        """All that is known, as plain data."""
        return {"title": self._title, "parts": self._stored}

    @property
    def _panels(self) -> list[Mapping[str, Any]]:
        return [panel for part in self._stored.values() for panel in part["panels"]]

    def _kept(self) -> dict[str, dict[str, Any]]:
        path = self.folder / "result.json"
        stored: dict[str, dict[str, dict[str, Any]]] = {"parts": {}}
        if path.exists():
            stored = json.loads(path.read_text(encoding="utf-8"))
        return stored["parts"]

    def _markdown(self) -> str:
        lines = [f"# {self._title}", "", "<!-- Written by a program from result.json; never edited by hand. -->", ""]
        lines += [self._intro, "", *(["![](result.png)", ""] if self._panels else []), "## Claims", ""]
        claims = [(name, claim) for name, part in self._stored.items() for claim in part["claims"]]
        rows = [
            [name, f"**{c['name']}**: {c['statement']}", c["target"], c["measured"], verdict(c["held"])]
            for name, c in claims
        ]
        lines += _table(["part", "claim", "target", "measured", "verdict"], rows)
        for part in self._stored.values():
            lines += [
                "",
                f"## {part['title']}",
                "",
                f"`{part['command']}` · {part['date']} · {part['seconds']:g} s",
                "",
            ]
            lines += ["; ".join(f"{key}: {value}" for key, value in part["machine"].items())]
            for note in part["notes"]:
                lines += ["", note]
            for table in part["tables"]:
                lines += ["", f"**{table['title']}**", "", *_table(table["columns"], table["rows"])]
        return "\n".join(lines) + "\n"


def _storable(table: Table) -> dict[str, Any]:
    """As plain data. JSON knows no infinity: what is not finite is written in words."""
    rows = [
        [str(cell) if isinstance(cell, float) and not math.isfinite(cell) else cell for cell in row]
        for row in table.rows
    ]
    return {**dataclasses.asdict(table), "rows": rows}


def verdict(held: bool | None) -> str:
    """How a claim's fate is written."""
    return {True: "held", False: "**not held**", None: "not measured"}[held]


def spread(values: Sequence[float], form: str = ".3g") -> str:
    """`median (lowest–highest)`."""
    ordered = sorted(values)
    return f"{median(ordered):{form}} ({ordered[0]:{form}}–{ordered[-1]:{form}})"


def median(values: Sequence[float]) -> float:
    """The middle of `values`; of the two middle ones the mean."""
    ordered = sorted(values)
    half = len(ordered) // 2
    return ordered[half] if len(ordered) % 2 else (ordered[half - 1] + ordered[half]) / 2


def _table(columns: Sequence[str], rows: Sequence[Sequence[Cell]]) -> list[str]:
    cells = [columns, ["---"] * len(columns), *([_cell(cell) for cell in row] for row in rows)]
    return ["| " + " | ".join(row) + " |" for row in cells]


def _cell(cell: Cell) -> str:
    if cell is None:
        return "–"
    return f"{cell:.4g}" if isinstance(cell, float) else str(cell).replace("|", "\\|")


def _draw(panels: Sequence[Mapping[str, Any]], path: Path) -> None:
    across = min(3, len(panels))
    down = -(-len(panels) // across)
    figure = Figure(figsize=(6.2 * across, 4.3 * down), layout="constrained")
    FigureCanvasAgg(figure)
    for place, panel in enumerate(panels):
        draw_panel(figure.add_subplot(down, across, place + 1), panel)
    figure.savefig(path, dpi=90, format="png")


def draw_panel(axes: Axes, panel: Mapping[str, Any]) -> None:
    """`panel`: a Panel as plain data, as it stands in result.json."""
    for number, series in enumerate(panel["series"]):
        y = series["y"]
        errors = None
        if series["low"]:
            below = [max(0.0, value - low) for value, low in zip(y, series["low"], strict=True)]
            above = [max(0.0, high - value) for value, high in zip(y, series["high"], strict=True)]
            errors = [below, above]
        if series["x"] and isinstance(series["x"][0], str):
            width = 0.8 / len(panel["series"])
            places = [index + (number + 0.5) * width - 0.4 for index in range(len(y))]
            axes.bar(places, y, width, yerr=errors, label=series["label"])
            is_long = max(len(line) for word in series["x"] for line in word.split("\n")) > LONG_LABEL
            slant = {"rotation": 30, "ha": "right", "rotation_mode": "anchor"} if is_long else {}
            axes.set_xticks(range(len(y)), series["x"], fontsize=7, **slant)
        else:
            scattered = panel.get("diagonal", False)  # results from before there was one have no such key
            marker = "." if len(y) < 40 or scattered else None
            line = "" if scattered else "-"
            axes.errorbar(series["x"], y, yerr=errors, label=series["label"], marker=marker, linestyle=line)
    if panel.get("diagonal", False) and (ends := [x for series in panel["series"] for x in series["x"]]):
        axes.plot([min(ends), max(ends)], [min(ends), max(ends)], color="black", linewidth=0.8, label="equal")
    if panel["target"] is not None:
        axes.axhline(panel["target"], color="black", linestyle="--", linewidth=0.8, label="target")
    if panel["log_x"]:
        axes.set_xscale("log")
    if panel["log_y"]:
        axes.set_yscale("log")
    axes.set_title(panel["title"], fontsize=10)
    axes.set_xlabel(panel["x_label"], fontsize=8)
    axes.set_ylabel(panel["y_label"], fontsize=8)
    axes.tick_params(labelsize=7)
    axes.legend(fontsize=7)


def _replace(path: Path, write: Callable[[Path], object]) -> None:
    """Let `write` fill a file beside `path`, and put it in the place of `path` at once."""
    handle, name = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.")
    os.close(handle)
    beside = Path(name)
    try:
        write(beside)
        beside.chmod(path.parent.stat().st_mode & 0o666)
        beside.replace(path)
    finally:
        beside.unlink(missing_ok=True)


def _cpu_model() -> str:
    info = Path("/proc/cpuinfo")
    names = [line.partition(":")[2].strip() for line in info.read_text().splitlines() if line.startswith("model name")]
    return names[0] if names else platform.machine()


def commit() -> str:
    """The commit that is checked out, and whether code differs from it."""

    def git(*arguments: str) -> str:
        done = subprocess.run(["git", *arguments], cwd=ROOT, capture_output=True, text=True, timeout=20, check=False)
        return done.stdout.strip()

    changed = git("status", "--porcelain", "--untracked-files=no", "--", "*.py")
    return (git("rev-parse", "--short", "HEAD") or "unknown") + (" with changes" if changed else "")
