"""The lines of a run's files, also while the run writes them.

In: a file, and whether its run goes on. Out: its lines, and for metrics.jsonl the events in them.
"""

import os
import re
from collections.abc import Callable, Iterable, Iterator
from dataclasses import replace
from pathlib import Path

from cluster_planner import load_plan
from ravnest.checkpoints.run_folder import RunFolder
from ravnest.driver.observe.metrics_file import event_of, last_records, record_of, records_from_end
from ravnest.driver.observe.report import PhaseEvent, ProgressEvent, RunEvent, TakenOverEvent
from ravnest.errors import InvalidInput
from ravnest.pipeline import stage_name

_BLOCK_BYTES = 64 * 1024
_MOST_NEWS_BYTES = 16 * 1024 * 1024
RAY = "ray"
_PRINTED = re.compile(r"\(([\w-]+\.s\d+) pid=")
"""How Ray begins a line that a stage has printed."""


def lines_of(path: Path, goes_on: Callable[[], bool], wait: Callable[[], None]) -> Iterator[str]:
    """Yields the lines of a file with their ends; the last one may have none.

    At the end of the file it waits (`wait` is called) and reads on, for as long as `goes_on` says. A file that is not
    there yet is waited for in the same way, and without that it has no lines.
    """
    while not path.exists():
        if not goes_on():
            return
        wait()
    with path.open("rb") as file:
        begun = b""
        while True:
            is_over = not goes_on()  # asked first: what was written before the end is read below
            while block := file.read(_BLOCK_BYTES):
                *whole, begun = (begun + block).split(b"\n")
                for line in whole:
                    yield line.decode("utf-8", "replace") + "\n"
            if is_over:
                break
            wait()
    if begun:
        yield begun.decode("utf-8", "replace")


def by_session(events: Iterable[tuple[float, RunEvent]]) -> Iterator[tuple[int, float, RunEvent]]:
    """Yields (session, seconds since its training began, event); sessions count from 1.

    Another one has begun where the clock goes back, or training begins once more. A driver that takes a run over goes
    on with the session and its clock.
    """
    session, last_s, trains, taken_over = 1, 0.0, False, False
    for at_s, event in events:
        begins = event == PhaseEvent("training") and not taken_over
        if at_s < last_s or (begins and trains):
            session, trains = session + 1, False
        trains, taken_over, last_s = trains or begins, isinstance(event, TakenOverEvent), at_s
        yield session, at_s, event


def news_of(path: Path, goes_on: Callable[[], bool], wait: Callable[[], None]) -> Iterator[RunEvent]:
    """Yields the last phase and the last progress of a metrics.jsonl, and then each event that comes, until the end.

    `goes_on` and `wait` are those of `lines_of`. Raises InvalidInput for a line that is no record.
    """
    at = path.stat().st_size if path.exists() else 0
    last = last_records(path, ("phase",))
    for event in (event_of(last["phase"]) if last else None, last_progress(path)):
        if event is not None:
            yield event
    while True:
        is_over = not goes_on()
        lines, at = lines_since(path, at)
        yield from events_in(lines)
        if is_over:
            return
        wait()


LOSS_BACK_S = 3600.0
"""How much older than the last progress the loss may be that is shown of a cluster."""


def last_progress(path: Path) -> ProgressEvent | None:
    """Returns the last progress of a metrics.jsonl, None before the first. Where a cluster has made no update in its
    last second, its loss is the last one before, of the same session.

    Raises InvalidInput for a file that cannot be read, and for a line of progress that is no record.
    """
    found: ProgressEvent | None = None
    losses: dict[str, float] = {}
    later_s = float("inf")
    for record in records_from_end(path, "progress"):
        event = event_of(record)
        assert isinstance(event, ProgressEvent)  # by its kind
        if found is None:
            found = event
        elif event.elapsed_s > later_s or event.elapsed_s < found.elapsed_s - LOSS_BACK_S:
            break  # another session, or long ago
        later_s = event.elapsed_s
        losses = {each.name: each.loss for each in event.clusters if each.loss is not None} | losses
        if all(each.name in losses for each in found.clusters):
            break
    if found is None:
        return None
    return replace(found, clusters=tuple(replace(each, loss=losses.get(each.name)) for each in found.clusters))


def lines_since(path: Path, at: int) -> tuple[list[str], int]:
    """Returns the whole lines of a file from a place on, and the place behind them. A file that has become shorter was
    begun anew, and one that is not there has no lines."""
    if not path.exists():
        return [], 0
    with path.open("rb") as file:
        at = 0 if file.seek(0, os.SEEK_END) < at else at
        file.seek(at)
        text = file.read(_MOST_NEWS_BYTES)
    end = text.rfind(b"\n") + 1
    return text[:end].decode("utf-8", "replace").split("\n")[:-1], at + end


def events_in(lines: Iterable[str]) -> list[RunEvent]:
    """Returns the events in lines of a metrics.jsonl. Raises InvalidInput for a line that is no record."""
    found = (event_of(record_of(line)) for line in lines)
    return [event for event in found if event is not None]


def log_of(folder: RunFolder, name: str) -> Path:
    """Returns the path of a log of the run: Ray's (`ray`), that of a detached run (`output`), or the traceback of a
    stage that failed.

    Raises InvalidInput, which names the logs and the stages that there are, where there is no such one.
    """
    logs = {path.stem: path for path in folder.ray_log.parent.glob("*.log")}
    if name not in logs:
        there = ", ".join(sorted(logs.keys() | stages_of(folder))) or "none"
        raise InvalidInput(
            f"has no log of {name!r} (there are: {there})",
            path=str(folder.path),
            hint="`ray` is what Ray said and what all stages printed",
        )
    return logs[name]


def stages_of(folder: RunFolder) -> set[str]:
    """Returns the names of the stages in the run's plan, where it can be read, and of those that have printed a line:
    a cluster that was made during the run is not in the plan."""
    printed: set[str] = set()
    if folder.ray_log.is_file():
        with folder.ray_log.open(encoding="utf-8", errors="replace") as file:
            printed = {found[1] for line in file if (found := _PRINTED.match(line))}
    try:
        plan = load_plan(folder.plan, has_run=True)
    except InvalidInput:
        return printed
    return printed | {stage_name(each.name, at) for each in plan.clusters for at in range(len(each.stages))}


def lines_of_stage(
    folder: RunFolder, stage: str, goes_on: Callable[[], bool], wait: Callable[[], None]
) -> Iterator[str]:
    """Yields the lines that a stage has printed, and its traceback where it has failed, with their ends.

    Ray brings what the stages print, each line with the stage's name before it. `goes_on` and `wait` are those of
    `lines_of`.
    """
    failed = folder.ray_log.with_name(f"{stage}.log")
    at = {folder.ray_log: 0, failed: 0}
    while True:
        is_over = not goes_on()
        for path, begin in at.items():
            while True:
                lines, end = lines_since(path, begin)
                for line in lines:
                    if path == failed:
                        yield f"{line}\n"
                    elif line.startswith(f"({stage} pid="):
                        yield f"{line.partition(') ')[2]}\n"
                if end == begin:
                    break
                begin = at[path] = end
        if is_over:
            return
        wait()
