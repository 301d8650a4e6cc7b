"""The pictures of the page that docs/page.md shows: the recorded run at three sizes of screen, light and dark."""

import json
import shutil
import tempfile
import time
from pathlib import Path
from typing import Any

from experiments.harness.report import Claim, Part, Table
from experiments.page.browser import BROWSER, DRIVER, browser, emulate
from ravnest.checkpoints.run_lock import RunLock
from ravnest.cli.views.progress import event_line
from ravnest.page.access import Access, new_token
from ravnest.page.followed_run import FollowedRun
from ravnest.page.server import PageServer, listen, page_app

ROOT = Path(__file__).parents[2]
RECORDED = ROOT / "tests/support/recorded_run"
SIZES = (("wide", 1360, False, None), ("tablet-dark", 900, True, 36.5), ("phone", 390, False, None))
"""By name: the screen's width, whether it is dark, and the second at which the run is shown; None: its end."""
_DEADLINE_S = 60.0
_DRAWN = """
const box = document.querySelector("#loss");
return !!box.querySelector("path.s") && box.o.W === box.clientWidth;
"""


def run(*, quick: bool) -> Part:
    """Take them, into docs/images; with `quick` into a folder that is thrown away."""
    if BROWSER is None or DRIVER is None:
        raise RuntimeError("needs the packages chromium and chromium-driver")
    with tempfile.TemporaryDirectory(prefix="ravnest-page-") as folder:
        into = Path(folder) if quick else ROOT / "docs/images"
        with browser() as driver:
            rows = [
                [name, width, _shown(driver, Path(folder), into / f"page-{name}.png", width, dark, until_s)]
                for name, width, dark, until_s in SIZES
            ]
    fits = all(row[1] == row[2] for row in rows)
    claim = Claim("fits", "the page is as wide as the screen", "no scrolling sideways", "yes" if fits else "no", fits)
    return Part("pictures", "Pictures", [claim], [Table("Sizes", ["picture", "screen, px", "page, px"], rows)])


def _shown(driver: Any, folder: Path, path: Path, width: int, dark: bool, until_s: float | None) -> int:
    """Serve the recorded run, as it was at that second or at its end, and take its picture."""
    run = shutil.copytree(RECORDED, folder / path.stem / "home")
    lock = None
    if until_s is not None:
        lines = (run / "metrics.jsonl").read_text(encoding="utf-8").splitlines()
        begun = [line for line in lines if json.loads(line)["at_s"] <= until_s]
        (run / "summary.json").unlink()
        lock = RunLock(run)  # before it writes anything, as a run does
        (run / "metrics.jsonl").write_text("\n".join(begun) + "\n", encoding="utf-8")
    listening, token = listen("127.0.0.1", 0), new_token()
    server = PageServer(page_app(FollowedRun(run, event_line), Access(token)), listening)
    server.start()
    try:
        driver.get(f"http://127.0.0.1:{listening.getsockname()[1]}/?token={token}")
        return _taken(driver, path, width, dark)
    finally:
        driver.get("about:blank")
        server.stop()
        if lock is not None:
            lock.release()


def _taken(driver: Any, path: Path, width: int, dark: bool) -> int:
    """Take one picture of the whole page; returns how wide the page is."""
    emulate(driver, width=width, dark=dark)
    deadline_s = time.monotonic() + _DEADLINE_S
    while not driver.execute_script(_DRAWN):
        if time.monotonic() > deadline_s:
            raise TimeoutError("the page shows no loss")
        time.sleep(0.1)
    emulate(
        driver, width=width, height=driver.execute_script("return document.documentElement.scrollHeight"), dark=dark
    )
    time.sleep(0.5)  # for the last frame, which no event tells of
    driver.save_screenshot(str(path))
    return int(driver.execute_script("return document.documentElement.scrollWidth"))
