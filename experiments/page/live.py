"""How soon the page shows what happens: a falling loss of the demo's run, and ten events after their lines.

In: examples/home, which is planned and trained for this, and the recorded run, to which ten events are added while a
browser watches. Out: seconds by the wall clock. The test of the same events (tests/integration/test_page.py) allows
longer on a machine that others load, and counts the page's own seconds too.
"""

import json
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from experiments.harness.report import Claim, Part, Table
from experiments.page.browser import BROWSER, DRIVER, browser
from experiments.page.pictures import RECORDED, ROOT
from ravnest.checkpoints.run_lock import RunLock
from ravnest.cli.views.progress import event_line
from ravnest.driver.observe import report
from ravnest.page.access import Access, new_token
from ravnest.page.followed_run import FollowedRun
from ravnest.page.server import PageServer, listen, page_app

EVENTS: tuple[report.RunEvent, ...] = (
    report.NoticeEvent("tablet fell behind"),
    report.EvaluatedEvent(96, 3.25, {}, final=False),
    report.CheckpointWrittenEvent(Path("r/checkpoints/checkpoint-000001"), 1),
    report.CheckpointRefusedEvent(2, "no space left on device"),
    report.ClusterLostEvent("c1", "c1.s2", "school-laptop", "its process was killed", 64, ("c0",)),
    report.ReplacementFailedEvent("c1", "school-laptop does not answer", 5.0),
    report.NodesSharedOutEvent("c1", ("living-room-nuc",), "no node for c1.s2"),
    report.ClusterReplacedEvent("c1", {"c1.s0": "living-room-nuc"}, 3, 12.0, 64),
    report.RestartedEvent("all clusters are gone", "checkpoint-000001", 5.0, planned_anew=False),
    report.PhaseEvent("draining", "the micro-batches in flight are finished"),
)
"""One of each kind that a person should see."""
FALLS_WITHIN_S = 10.0
SHOWN_WITHIN_S = 5.0
_DEADLINE_S = 240.0
_LISTED = """
const [kind, text] = arguments;
return [...document.querySelectorAll(`#events li[data-kind=${kind}] span`)].some((e) => e.textContent === text);
"""


def run(*, quick: bool) -> Part:
    """Measure both; with `quick` the events alone."""
    if BROWSER is None or DRIVER is None:
        raise RuntimeError("needs the packages chromium and chromium-driver")
    with browser() as driver, tempfile.TemporaryDirectory(prefix="ravnest-page-") as folder:
        delays = _delays(driver, Path(folder) / "recorded")
        falls_s = None if quick else _falls(driver, Path(folder))
    claims = [
        Claim(
            "events",
            f"each of {len(delays)} events is shown by name soon after its line",
            f"within {SHOWN_WITHIN_S:g} s",
            f"{max(delays.values()):.2f} s at most",
            max(delays.values()) <= SHOWN_WITHIN_S,
        ),
        Claim(
            "demo",
            "the page of the demo's run shows a loss that falls, from its first loss on",
            f"within {FALLS_WITHIN_S:g} s",
            "not measured" if falls_s is None else f"{falls_s:.1f} s",
            None if falls_s is None else falls_s <= FALLS_WITHIN_S,
        ),
    ]
    rows = [[kind, f"{seconds:.2f}"] for kind, seconds in delays.items()]
    return Part("live", "How soon it is shown", claims, [Table("Events", ["kind", "seconds to be shown"], rows)])


def happens(run_folder: Path, event: report.RunEvent, at_s: float = 40.0) -> None:
    """Write the line of an event, as a run does."""
    line = {"kind": report.kind_of(event), "at_s": at_s, **report.as_plain(event)}
    with (run_folder / "metrics.jsonl").open("a", encoding="utf-8") as file:
        file.write(json.dumps(line, separators=(",", ":")) + "\n")


def begun(run_folder: Path) -> RunLock:
    """The recorded run in a new folder, as if it were half way and went on, until the lock is released."""
    shutil.copytree(RECORDED, run_folder)
    (run_folder / "summary.json").unlink()
    with (run_folder / "metrics.jsonl").open(encoding="utf-8") as file:
        lines = [line for line in file if '"kind":"progress"' in line or '"loss"' in line]
    (run_folder / "metrics.jsonl").write_text("".join(lines[: len(lines) // 2]), encoding="utf-8")
    lock = RunLock(run_folder)
    happens(run_folder, report.PhaseEvent("training"))
    return lock


def _delays(driver: Any, run_folder: Path) -> dict[str, float]:
    """By kind of event: seconds from its line in metrics.jsonl to its words on the page."""
    lock, token = begun(run_folder), new_token()
    listening = listen("127.0.0.1", 0)
    server = PageServer(page_app(FollowedRun(run_folder, event_line), Access(token)), listening)
    server.start()
    delays = {}
    try:
        driver.get(f"http://127.0.0.1:{listening.getsockname()[1]}/?token={token}")
        _until(lambda: driver.execute_script("return view !== null && view.read === 1"))
        for event in EVENTS:
            happens(run_folder, event)
            delays[report.kind_of(event)] = _until(
                lambda event=event: driver.execute_script(_LISTED, report.kind_of(event), event_line(event))
            )
    finally:
        driver.get("about:blank")
        server.stop()
        lock.release()
    return delays


def _falls(driver: Any, folder: Path) -> float:
    """Seconds from the first loss on the page of the demo's run to one that is a tenth lower."""
    nodes = str(ROOT / "examples/home/nodes.yaml")
    ravnest = [sys.executable, "-m", "ravnest"]
    subprocess.run([*ravnest, "plan", nodes, "-o", "plan.yaml"], cwd=folder, check=True, capture_output=True)
    with _running([*ravnest, "run", "plan.yaml", "--out", "demo", "--page", "--page-port", "0"], folder) as link:
        driver.get(link)
        _until(lambda: driver.execute_script("return view && view.progress && view.progress.loss > 0"))
        first = driver.execute_script("return view.progress.loss")
        falls_s = _until(lambda: driver.execute_script("return view.progress.loss") < 0.9 * first)
        driver.get("about:blank")
    return falls_s


@contextmanager
def _running(command: list[str], folder: Path) -> Iterator[str]:
    """The command goes on while the block does. Gives the link to its page."""
    with (folder / "said").open("wb") as said:
        process = subprocess.Popen(command, cwd=folder, stdout=said, stderr=said)
    try:
        _until(lambda: "/?token=" in (folder / "said").read_text() or process.poll() is not None)
        lines = (folder / "said").read_text().splitlines()
        yield next(line.split()[-1] for line in lines if "/?token=" in line)
    finally:
        for number in (signal.SIGINT, signal.SIGINT, signal.SIGKILL):
            if process.poll() is None:
                process.send_signal(number)
                try:
                    process.wait(30)
                except subprocess.TimeoutExpired:
                    continue


def _until(reached: Callable[[], object]) -> float:
    """Wait; returns the seconds that it took."""
    began_s = time.monotonic()
    while not reached():
        if time.monotonic() - began_s > _DEADLINE_S:
            raise TimeoutError("the page never showed it")
        time.sleep(0.05)
    return time.monotonic() - began_s
