"""What the page costs: the server's share of a core while one browser watches, and the browser's time for a view."""

import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import psutil

from experiments.harness.report import Claim, Part, Table
from experiments.page.browser import BROWSER, DRIVER, browser
from experiments.page.generated_run import GeneratedRun
from experiments.scale.fleets import home_plan

STAGES = 4
"""Of each cluster."""
DAYS = 10
PAST_S = 300
"""So much of the run, after the days, before anybody looks."""
SETTLE_S = 10
"""The reading of the past has its own claim, and its end takes a moment."""
WATCHED_S = 30
MOST_OF_A_CORE = 0.02
USABLE_MS = 200.0
AT_ONCE_S = 5.0
_DEADLINE_S = 300.0
_TIMED = """
const seconds = arguments[0], taken = [], real = draw;
draw = () => {
  const from = performance.now();
  real();
  document.body.offsetHeight;
  taken.push(performance.now() - from);
};
setTimeout(() => { draw = real; window.found = taken; }, 1000 * seconds);
"""


def run(*, quick: bool) -> Part:
    """Measure both sizes."""
    if BROWSER is None or DRIVER is None:
        raise RuntimeError("needs the packages chromium and chromium-driver")
    rows = [_measured(nodes, quick=quick) for nodes in ((8, 64) if quick else (64, 1000))]
    small, large = rows
    claims = [
        Claim(
            "server",
            f"the page of {small[0]} nodes takes little of a core",
            f"at most {MOST_OF_A_CORE:.0%}",
            f"{small[1]:.2%}",
            small[1] <= MOST_OF_A_CORE,
        ),
        Claim(
            "browser",
            f"the page of {large[0]} nodes is usable: a view is drawn at once",
            f"at most {USABLE_MS:.0f} ms",
            f"{large[4]:.0f} ms",
            large[4] <= USABLE_MS,
        ),
        Claim(
            "days",
            f"the page of {small[0]} nodes that train since {1 if quick else DAYS} days is up to date soon",
            f"within {AT_ONCE_S:.0f} s",
            f"{small[2]:.1f} s",
            small[2] <= AT_ONCE_S,
        ),
    ]
    columns = [
        "nodes",
        "of a core while watched",
        "metrics.jsonl, GB",
        "until up to date, s",
        "bytes of a view",
        "drawing a view, ms",
        "resident, MB",
    ]
    shown = [
        [nodes, f"{share:.2%}", f"{written:.1f}", f"{read_s:.1f}", size, f"{drawn:.0f}", resident]
        for nodes, share, read_s, size, drawn, resident, written in rows
    ]
    note = (
        f"Clusters of {STAGES} stages; an update of each stage every 4 s; {3 if quick else WATCHED_S} s watched by one "
        f"browser, after {1 if quick else DAYS} days and five minutes of the run that were there before. Of the days "
        "there is history.jsonl as a run writes it, and in metrics.jsonl a hole in place of their lines. The share is "
        f"the server's processor time over the wall clock's, from {SETTLE_S} s after the page is up to date, which is "
        "counted from the first request. Drawing is the median of the views that came, layout included."
    )
    return Part("cost", "What the page costs", claims, [Table("Cost", columns, shown)], notes=[note])


def _measured(nodes: int, *, quick: bool) -> tuple[int, float, float, int, float, int, float]:
    watched_s = 3 if quick else WATCHED_S
    with tempfile.TemporaryDirectory(prefix="ravnest-page-") as folder:
        run = GeneratedRun(Path(folder) / "run", home_plan(nodes, STAGES, 0))
        run.days(1 if quick else DAYS)
        run.seconds(60 if quick else PAST_S)
        server = subprocess.Popen(
            [sys.executable, "-m", "ravnest", "watch", str(Path(folder) / "run"), "--port", "0"],
            stdout=subprocess.PIPE,
            text=True,
        )
        try:
            assert server.stdout is not None
            link = server.stdout.readline().split()[-1]
            with browser() as driver:
                began_s = time.monotonic()
                driver.get(link)
                _until(driver, "return view !== null && view.read === 1 && !!curves.loss")
                read_s = time.monotonic() - began_s
                for _ in range(SETTLE_S):
                    run.seconds(1)
                    time.sleep(1.0)
                driver.execute_script(_TIMED, watched_s)
                process = psutil.Process(server.pid)
                before, from_s = _processor_s(process), time.monotonic()
                for second in range(watched_s):
                    run.seconds(1)
                    time.sleep(max(0.0, from_s + second + 1 - time.monotonic()))
                share = (_processor_s(process) - before) / (time.monotonic() - from_s)
                _until(driver, "return !!window.found && window.found.length > 0")
                taken = driver.execute_script("return window.found")
                size = driver.execute_script("return JSON.stringify(view).length")
            resident, written = process.memory_info().rss // 10**6, run.metrics.stat().st_size / 1e9
            return nodes, share, read_s, int(size), statistics.median(taken), resident, written
        finally:
            server.kill()
            server.wait(10)
            run.close()


def _processor_s(process: psutil.Process) -> float:
    times = process.cpu_times()
    return float(times.user + times.system)


def _until(driver: Any, script: str) -> None:
    deadline_s = time.monotonic() + _DEADLINE_S
    while not driver.execute_script(script):
        if time.monotonic() > deadline_s:
            raise TimeoutError(f"never came: {script}")
        time.sleep(0.2)
