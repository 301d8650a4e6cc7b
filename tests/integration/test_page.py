"""The pages in a real browser: a run that was recorded, one that the test writes while it is watched, and a plan."""

import json
import os
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from shutil import copytree
from typing import Any

import pytest
from selenium.webdriver.common.action_chains import ActionChains
from selenium.webdriver.common.by import By
from selenium.webdriver.common.keys import Keys
from selenium.webdriver.support.ui import WebDriverWait

from cluster_planner import predicted_again
from experiments.page.browser import BROWSER, DRIVER, MISSING, browser, emulate
from experiments.page.generated_run import GeneratedRun
from experiments.page.live import EVENTS, begun, happens
from experiments.scale.fleets import home_plan as home_plan_of
from ravnest.checkpoints.run_lock import RunLock
from ravnest.cli.views.progress import event_line
from ravnest.collaboration.people import People, Person
from ravnest.driver.observe import report
from ravnest.page.access import Access, new_token
from ravnest.page.collaboration_view import FollowedCollaboration
from ravnest.page.followed_run import FollowedRun
from ravnest.page.members_app import members_app
from ravnest.page.plan_app import plan_app
from ravnest.page.server import PageServer, listen, page_app
from tests.unit.ravnest.simulator.test_fleet import home_plan

pytestmark = [
    pytest.mark.skipif(BROWSER is None or DRIVER is None, reason=MISSING),
    pytest.mark.timeout(300),
]
SUPPORT = Path(__file__).parents[1] / "support"
WAIT_S = 60
DASH = "–"
SHOWN_WITHIN_VIEWS = 5
"""A view comes once a second at most, so these are seconds of the page's own."""
SHOWN_WITHIN_S = 5.0
"""By the clock, on a machine with a core for it; see `shown_within_s`. `python -m experiments.page` measures it."""
FALLS_WITHIN_VIEWS = 10


class Page:
    """A page that is served for a browser."""

    def __init__(self, run: Path, port: int = 0, token: str | None = None) -> None:
        self.run, self.token = run, token or new_token()
        listening = listen("127.0.0.1", port)
        self.port = listening.getsockname()[1]
        self.origin = f"http://127.0.0.1:{self.port}"
        self.server = PageServer(page_app(FollowedRun(run, event_line), Access(self.token)), listening)
        self.server.start()

    def again(self) -> "Page":
        """The same page, served anew after its server was stopped."""
        return Page(self.run, self.port, self.token)


@pytest.fixture(scope="module")
def driver() -> Iterator[Any]:
    with browser() as driver:
        yield driver


@pytest.fixture(scope="module")
def finished(driver: Any, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Page]:
    page = Page(copytree(SUPPORT / "recorded_run", tmp_path_factory.mktemp("page") / "home"))
    yield page
    page.server.stop()


@pytest.fixture
def shown(driver: Any, finished: Page) -> Page:
    opened(driver, finished)
    return finished


def opened(driver: Any, page: Page) -> None:
    driver.get(f"{page.origin}/?token={page.token}")
    until(driver, lambda: texts(driver, "#tiles .big") and driver.find_elements(By.CSS_SELECTOR, "#loss path.s"))


def until(driver: Any, wanted: Any) -> Any:
    return WebDriverWait(driver, WAIT_S, 0.1).until(lambda _: wanted())


def counted_views(driver: Any) -> Callable[[], int]:
    """A function that says how many views the page has got since now."""
    driver.execute_script("window.seen = 0; source.addEventListener('view', () => { window.seen++; });")
    return lambda: int(driver.execute_script("return window.seen"))


def shown_within_s() -> float:
    """SHOWN_WITHIN_S, and longer in proportion where others want more of this machine than it has."""
    return SHOWN_WITHIN_S * max(1.0, 2.0 * os.getloadavg()[0] / (os.cpu_count() or 1))


def texts(driver: Any, selector: str) -> list[str]:
    script = "return [...document.querySelectorAll(arguments[0])].map((e) => e.textContent.replaceAll('\\u00a0', ' '))"
    return driver.execute_script(script, selector)


def test_a_finished_run_shows_its_loss_its_plan_and_what_happened(driver: Any, shown: Page) -> None:
    summary = json.loads((shown.run / "summary.json").read_text())
    assert texts(driver, "#state") == ["finished"]
    assert f"{summary['held_out_loss']:.3f}" in texts(driver, "#tiles .big")
    assert texts(driver, "#loss-legend span") == ["c0", "c1", "joined0", "held-out"]  # the third was made on the way
    losses = driver.execute_script("return curves.loss.c0.map((p) => p[2])")
    assert losses[-1] < 0.7 * losses[0]
    assert len(driver.find_elements(By.CSS_SELECTOR, "#plan .stage")) == 6
    kinds = driver.execute_script("return [...document.querySelectorAll('#events li')].map((e) => e.dataset.kind)")
    assert {"phase", "evaluated", "checkpoint", "lost", "replaced"} <= set(kinds)
    assert driver.title.startswith("100% · loss ")
    assert [entry for entry in driver.get_log("browser") if entry["level"] == "SEVERE"] == []


def test_the_keyboard_reads_values_and_changes_the_axis(driver: Any, shown: Page) -> None:
    plot = driver.find_element(By.CSS_SELECTOR, "#loss svg")
    plot.send_keys(Keys.HOME)
    assert "c0 " in until(driver, lambda: texts(driver, "#loss .read")[0])
    label = plot.get_attribute("aria-label")
    driver.find_element(By.CSS_SELECTOR, "input[value=time]").send_keys(Keys.SPACE)
    assert plot.get_attribute("aria-label") == label.replace("samples", "time", 1)


def test_everything_can_be_reached_and_used_by_keyboard_alone(driver: Any, shown: Page) -> None:
    driver.execute_script("document.activeElement.blur(); scrollTo(0, 0)")
    where = """
        const e = document.activeElement;
        if (e === document.body) return null;
        const name = e.id || e.getAttribute("aria-label") || e.name || e.getAttribute("href") || e.textContent;
        return [[...document.querySelectorAll("*")].indexOf(e), name];
    """
    reached: dict[int, str] = {}
    for _ in range(60):
        ActionChains(driver).send_keys(Keys.TAB).perform()
        at = driver.execute_script(where)
        if at is None or at[0] in reached:
            break
        reached[at[0]] = at[1]
    names = list(reached.values())
    assert list(reached) == sorted(reached), "in the order of the page"
    wanted = ["x", "log", "Stages of c0", "What the words mean", "links", "/api/links", "tone", "/api/view", "/metrics"]
    assert [each for each in wanted if each not in names] == []
    assert [each for each in ("Loss against", "Samples per second", "Seconds from") if each not in str(names)] == []
    summary = driver.find_element(By.CSS_SELECTOR, "#plan ~ details summary")
    summary.send_keys(Keys.ENTER)
    assert driver.execute_script("return document.querySelector('#plan ~ details').open")
    driver.find_element(By.CSS_SELECTOR, "input[name=tone][value=news]").send_keys(Keys.SPACE)
    kinds = driver.execute_script("return [...document.querySelectorAll('#events li')].map((e) => e.className)")
    assert kinds
    assert set(kinds) <= {"bad", "note"}


def test_no_request_leaves_the_pages_own_origin(driver: Any, shown: Page) -> None:
    until(driver, lambda: driver.execute_script("return lastHeard") > 0)
    messages = [json.loads(entry["message"])["message"] for entry in driver.get_log("performance")]
    asked = [each["params"]["request"]["url"] for each in messages if each["method"] == "Network.requestWillBeSent"]
    assert f"{shown.origin}/api/events" in asked
    assert [url for url in asked if not url.startswith((f"{shown.origin}/", "data:"))] == []
    blocked = "return fetch(arguments[0]).then(() => 'sent', () => 'blocked')"
    assert driver.execute_script(blocked, f"http://localhost:{shown.port}/") == "blocked"


def test_without_the_token_nothing_is_shown(driver: Any, finished: Page) -> None:
    driver.get(f"{finished.origin}/?token=guessed")
    driver.delete_all_cookies()
    for path in ("/", "/api/view", "/metrics"):
        driver.get(finished.origin + path)
        seen = driver.find_element(By.TAG_NAME, "body").text
        assert "token is missing or wrong" in seen.lower()
        assert "home" not in driver.page_source


@pytest.mark.parametrize(("width", "dark"), [(1360, False), (1360, True), (390, False)])
def test_axe_finds_nothing_serious(driver: Any, shown: Page, width: int, dark: bool) -> None:
    emulate(driver, width=width, dark=dark)
    for summary in driver.find_elements(By.TAG_NAME, "summary"):
        summary.click()
    driver.execute_script((SUPPORT / "axe/axe.min.js").read_text(encoding="utf-8"))
    found = driver.execute_async_script("axe.run().then(arguments[0])")
    emulate(driver)
    assert len(found["passes"]) > 20
    serious = [each for each in found["violations"] if each["impact"] in ("serious", "critical")]
    assert [(each["id"], [node["html"] for node in each["nodes"]]) for each in serious] == []
    assert driver.execute_script("return document.documentElement.scrollWidth") <= max(width, 1360)


def test_a_run_of_64_nodes_is_one_square_a_stage_which_the_keyboard_opens(driver: Any, tmp_path: Path) -> None:
    run = GeneratedRun(tmp_path / "r", home_plan_of(64, 4, 0))
    lock = RunLock(tmp_path / "r")
    run.seconds(12)
    happens(tmp_path / "r", report.ClusterLostEvent("c3", "c3.s1", "n37", "its process was killed", 64, ("c0",)), 12.0)
    page = Page(tmp_path / "r")
    opened(driver, page)
    assert len(driver.find_elements(By.CSS_SELECTOR, "#grid .cell")) == 64
    assert len(driver.find_elements(By.CSS_SELECTOR, "#grid .cell[tabindex='0']")) == 1
    driver.find_element(By.CSS_SELECTOR, "#grid .cell[tabindex='0']").send_keys(Keys.ARROW_DOWN)
    here = "return document.activeElement.getAttribute('aria-label').split(' ')[0]"
    assert driver.execute_script(here) == "c1.s0"
    driver.switch_to.active_element.send_keys(Keys.ARROW_RIGHT)
    assert driver.execute_script(here) == "c1.s1"
    driver.switch_to.active_element.send_keys(Keys.ENTER)
    assert until(driver, lambda: "c1.s1 · units" in " ".join(texts(driver, "#plan > div .stage .hint")))
    assert texts(driver, ".troubles li")[0].startswith("c3 lost for ")
    assert "its process was killed" in texts(driver, ".troubles li")[0]
    to_do = texts(driver, "#events li[data-kind=lost] p")
    assert to_do == [
        "Nothing has to be done: it is started anew by itself where that is possible."
        " `ravnest logs r c3.s1` shows what the stage said last."
    ]
    for width in (1360, 390):
        emulate(driver, width=width)
        driver.execute_script((SUPPORT / "axe/axe.min.js").read_text(encoding="utf-8"))
        found = driver.execute_async_script("axe.run().then(arguments[0])")
        assert [each["id"] for each in found["violations"] if each["impact"] in ("serious", "critical")] == []
        assert driver.execute_script("return document.documentElement.scrollWidth") <= width
    emulate(driver)
    driver.get("about:blank")
    page.server.stop()
    run.close()
    lock.release()


def test_the_page_of_a_run_of_1000_nodes_is_drawn_and_its_controls_work(driver: Any, tmp_path: Path) -> None:
    plan = home_plan_of(1000, 4, 0)
    run = GeneratedRun(tmp_path / "r", plan)
    lock = RunLock(tmp_path / "r")
    run.seconds(10)
    page = Page(tmp_path / "r")
    driver.get_log("browser")  # reading takes away what other tests have left there, as what was blocked
    opened(driver, page)
    stages = sum(len(cluster.stages) for cluster in plan.clusters)
    assert stages > 900
    assert len(driver.find_elements(By.CSS_SELECTOR, "#grid .cell")) == stages
    assert len(texts(driver, "#links tbody tr")) <= 12
    last = plan.clusters[-1]
    driver.find_elements(By.CSS_SELECTOR, "#grid .cell")[-1].click()
    name = f"{last.name}.s{len(last.stages) - 1}"
    until(driver, lambda: f"{name} · units" in " ".join(texts(driver, "#plan > div .stage .hint")))
    label = driver.find_element(By.CSS_SELECTOR, "#loss svg").get_attribute("aria-label")
    driver.find_element(By.CSS_SELECTOR, "input[value=time]").send_keys(Keys.SPACE)
    by_time = driver.find_element(By.CSS_SELECTOR, "#loss svg").get_attribute("aria-label")
    assert by_time == label.replace("samples", "time", 1)
    views, samples = counted_views(driver), driver.execute_script("return view.progress.samples")
    run.seconds(8)
    until(driver, lambda: driver.execute_script("return view.progress.samples") > samples)
    assert views() > 0
    assert driver.execute_script("return document.documentElement.scrollWidth") <= 1360
    assert [entry for entry in driver.get_log("browser") if entry["level"] == "SEVERE"] == []
    driver.get("about:blank")
    page.server.stop()
    run.close()
    lock.release()


def test_on_a_telephone_rows_are_blocks_in_which_each_value_has_its_name(driver: Any, shown: Page) -> None:
    emulate(driver, width=390)
    cut = """
        const box = document.querySelector("#links");
        const first = box.querySelectorAll("tbody tr:first-child td:not(.none)");
        return [box.scrollWidth - box.clientWidth, [...first].map((e) => getComputedStyle(e, "::before").content)];
    """
    try:
        beyond, names = until(driver, lambda: driver.execute_script(cut))
    finally:
        emulate(driver)
    assert beyond <= 0
    assert names[:2] == ['"from → to"', '"stages"']


def test_a_running_run_shows_each_event_by_name_and_comes_back_after_a_lost_connection(
    driver: Any, tmp_path: Path
) -> None:
    run = tmp_path / "live"
    lock = begun(run)

    def is_listed(event: report.RunEvent) -> bool:
        return event_line(event) in texts(driver, f"#events li[data-kind={report.kind_of(event)}] span")

    page = Page(run)
    opened(driver, page)
    assert texts(driver, "#state") == ["running"]
    views = counted_views(driver)
    for event in EVENTS:
        happens(run, event)
        before, from_s = views(), time.monotonic()
        until(driver, lambda event=event: is_listed(event))
        assert time.monotonic() - from_s <= shown_within_s()
        assert views() - before <= SHOWN_WITHIN_VIEWS
    assert texts(driver, "#links td") == []
    with (run / "metrics.jsonl").open("a") as file:
        file.write(json.dumps({"kind": "baselines", "at_s": 40.0, "losses": {"guessing": 4.2}}) + "\n")
    with (run / "metrics.jsonl").open("a") as file:
        link = {"from": "c0.s0", "to": "c1.s0", "hop_bytes_per_s": 1.25e6, "bulk_bytes_per_s": 3e5}
        file.write(json.dumps({"kind": "links", "at_s": 40.0, "links": [link]}) + "\n")
    hop = report.Hop("c0.s0", "c1.s0", 1.25e6)
    happens(run, report.RoundCommittedEvent(4, 900, 1.2, hop, {"c0.s0": 1_500_000, "c1.s0": 2_500_000}))
    row = until(driver, lambda: texts(driver, "#links td"))
    assert row[1:3] == ["c0.s0 → c1.s0", "1.5 MB/s"]
    assert row[3:] == ["1.25 MB/s, 0.83 ×", DASH, "300 kB/s"]
    until(driver, lambda: "at 1.25 MB/s, planned 1.5 MB/s." in texts(driver, "#round-hint")[0])
    assert " 4 MB travelled for the last one, all rings together; planned " in texts(driver, "#round-hint")[0]
    assert any(each.startswith("1.5 MB, planned ") for each in texts(driver, "#plan .row span"))
    until(driver, lambda: "guessing" in texts(driver, "#loss svg text"))
    page.server.stop()
    until(driver, lambda: "connection lost" in texts(driver, "#link.lost")[0] if texts(driver, "#link.lost") else False)
    happens(run, report.NoticeEvent("while nobody watched"))
    page = page.again()
    until(driver, lambda: is_listed(report.NoticeEvent("while nobody watched")))
    until(driver, lambda: not texts(driver, "#link.lost"))
    happens(run, report.FailedEvent("the disk is full"))
    lock.release()
    until(driver, lambda: texts(driver, "#state") == ["failed"])
    assert texts(driver, "#failure") == ["It has ended: the disk is full"]
    page.server.stop()
    until(driver, lambda: texts(driver, "#link.lost") and "the run has ended" in texts(driver, "#link.lost")[0])
    page = Page(run, page.port)  # served anew with another token, which this browser has not
    until(driver, lambda: "the token is missing or wrong" in texts(driver, "#link.lost")[0])
    driver.get("about:blank")
    page.server.stop()


def test_the_loss_of_a_run_that_goes_on_falls_before_ones_eyes(driver: Any, tmp_path: Path) -> None:
    run = GeneratedRun(tmp_path / "r", home_plan_of(8, 4, 0))
    lock = RunLock(tmp_path / "r")
    run.seconds(8)
    page = Page(tmp_path / "r")
    opened(driver, page)
    views = counted_views(driver)
    first = driver.execute_script("return view.progress.loss")
    while driver.execute_script("return view.progress.loss") > 0.98 * first:
        assert views() <= FALLS_WITHIN_VIEWS
        before = views()
        run.seconds(1)
        until(driver, lambda before=before: views() > before)
    assert float(texts(driver, "#tiles .big")[1]) < first
    driver.get("about:blank")
    page.server.stop()
    run.close()
    lock.release()


HOSTS = {
    "kind": "experts",
    "name": "digits",
    "experts": 16,
    "hosted": 3,
    "callers": ["one"],
    "hosts": [
        {
            **{"host": "attic <b>", "address": "192.0.2.7:7800", "experts": ["0.0", "0.1", "1.0"], "most_experts": 4},
            **{"samples_per_s": 1234.0, "answer_ms": 12.5, "updates": 99},
        }
    ],
}


def test_people_of_a_collaboration_and_hosts_of_experts_have_a_page(driver: Any, tmp_path: Path) -> None:
    (tmp_path / "people.json").write_text(People({"ab": Person("ab", "lena <i>", 640, 10, 1)}).text())
    step = {"step": 1, "time_s": 0.0, "seconds": 0.5, "samples_in_all": 640, "peers": 1, "loss": 2.5}
    (tmp_path / "curve.jsonl").write_text("".join(json.dumps(step | {"loss": 3.0 - i}) + "\n" for i in range(2)))
    looks = {"1 host": lambda: HOSTS, "people": FollowedCollaboration(tmp_path).document}
    for look in looks.values():
        listening, token = listen("127.0.0.1", 0), new_token()
        server = PageServer(members_app(look, Access(token)), listening)
        server.start()
        driver.get(f"http://127.0.0.1:{listening.getsockname()[1]}/?token={token}")
        row = until(driver, lambda: texts(driver, "#members td"))
        if look is looks["people"]:
            assert row == ["lena <i>", "640", "10", "1", "0", "ab"]
            assert "from 3.000 to 2.000" in driver.find_element(By.ID, "loss").get_attribute("aria-label")
        else:
            assert row == ["attic <b>", "192.0.2.7:7800", "3 of 4", "1,234", "13 ms", "99"]
        driver.execute_script((SUPPORT / "axe/axe.min.js").read_text(encoding="utf-8"))
        found = driver.execute_async_script("axe.run().then(arguments[0])")
        assert [each["id"] for each in found["violations"] if each["impact"] in ("serious", "critical")] == []
        driver.delete_all_cookies()
        until(driver, lambda: "lost: the token is missing or wrong: open" in "".join(texts(driver, "#link.lost")))
        driver.get("about:blank")
        server.stop()


def test_nodes_of_a_plan_change_places_and_the_prediction_follows(driver: Any) -> None:
    plan, token = predicted_again(home_plan()), new_token()
    listening = listen("127.0.0.1", 0)
    server = PageServer(plan_app(plan, Access(token)), listening)
    server.start()
    first, other = plan.clusters[0].stages[0].node, plan.clusters[1].stages[0].node
    node = "li button[data-node={}]".format
    driver.get(f"http://127.0.0.1:{listening.getsockname()[1]}/?token={token}")
    until(driver, lambda: texts(driver, node(first)))
    assert texts(driver, "#tiles small") == ["as planned"] * 3
    driver.find_element(By.CSS_SELECTOR, node(first)).send_keys(Keys.ENTER)
    driver.find_element(By.CSS_SELECTOR, node(other)).send_keys(Keys.ENTER)
    until(driver, lambda: f"{first} and {other} have changed places" in texts(driver, "#said"))
    assert texts(driver, "section:first-of-type li b")[0] == other
    assert texts(driver, "#tiles small")[0] != "as planned"
    in_focus = "return document.activeElement.dataset.node"
    assert driver.execute_script(in_focus) == first, "the keyboard stays at the place, which has another node now"
    steps = "['dragstart', 'dragover', 'drop']"
    driver.execute_script(f"window.seen = []; for (const e of {steps}) addEventListener(e, () => seen.push(e));")
    held, onto = (driver.find_element(By.CSS_SELECTOR, node(name)) for name in (first, other))
    ActionChains(driver).drag_and_drop(held, onto).perform()  # as a mouse does it
    until(driver, lambda: texts(driver, "section:first-of-type li b")[0] == first)
    heard = driver.execute_script("return seen")
    assert (heard[0], heard[-1], set(heard[1:-1])) == ("dragstart", "drop", {"dragover"})
    driver.execute_script("swap('nobody', arguments[0])", first)
    until(driver, lambda: texts(driver, "#said.wrong") == ["Not possible: swaps: the plan has no node 'nobody'"])
    driver.execute_script((SUPPORT / "axe/axe.min.js").read_text(encoding="utf-8"))
    found = driver.execute_async_script("axe.run().then(arguments[0])")
    assert [each["id"] for each in found["violations"] if each["impact"] in ("serious", "critical")] == []
    driver.get("about:blank")
    server.stop()


def test_an_exchange_that_was_not_answered_or_refused_does_not_spoil_the_next(driver: Any) -> None:
    plan, token = predicted_again(home_plan()), new_token()
    listening = listen("127.0.0.1", 0)
    port = listening.getsockname()[1]
    server = PageServer(plan_app(plan, Access(token)), listening)
    server.start()
    first, other = plan.clusters[0].stages[0].node, plan.clusters[1].stages[0].node
    driver.get(f"http://127.0.0.1:{port}/?token={token}")
    until(driver, lambda: texts(driver, "li button"))
    exchange, kept = "swap(arguments[0], arguments[1])", "return swaps.length"
    driver.execute_script(f"swap('nobody', arguments[0]); {exchange}", first, other)
    until(driver, lambda: texts(driver, "#said.wrong") == ["Not possible: swaps: the plan has no node 'nobody'"])
    assert driver.execute_script(kept) == 0, "neither the one that is refused nor the one behind it"
    server.stop()
    driver.execute_script(exchange, first, other)
    until(driver, lambda: texts(driver, "#said.wrong") == ["The server does not answer any more."])
    another = PageServer(plan_app(plan, Access(new_token())), listen("127.0.0.1", port))
    another.start()
    driver.execute_script(exchange, first, other)
    until(driver, lambda: texts(driver, "#said.wrong")[0].startswith("The server refuses: the token is missing or"))
    another.stop()
    again = PageServer(plan_app(plan, Access(token)), listen("127.0.0.1", port))
    again.start()
    driver.execute_script(exchange, first, other)
    until(driver, lambda: texts(driver, "#said") == [f"{first} and {other} have changed places"])
    assert driver.execute_script(kept) == 1
    driver.get("about:blank")
    again.stop()


def test_the_clusters_of_a_large_plan_are_found_by_node_cluster_or_region(driver: Any) -> None:
    plan, token = home_plan_of(64, 4, 0), new_token()
    listening = listen("127.0.0.1", 0)
    server = PageServer(plan_app(plan, Access(token)), listening)
    server.start()
    driver.get(f"http://127.0.0.1:{listening.getsockname()[1]}/?token={token}")
    until(driver, lambda: texts(driver, "#clusters h2"))
    sought = driver.find_element(By.ID, "sought")
    there = "return [...document.querySelectorAll('#clusters section:not([hidden]) h2')].map((e) => e.textContent)"
    assert len(driver.execute_script(there)) == len(plan.clusters)
    node = plan.clusters[5].stages[1].node
    sought.send_keys(node)
    assert f"{plan.clusters[5].name}:" in str(driver.execute_script(there))
    assert len(driver.execute_script(there)) < len(plan.clusters)
    assert texts(driver, "#found")[0].endswith(" of 16")
    sought.clear()
    sought.send_keys("region0")
    regions = [{plan.fleet.node(stage.node).region for stage in cluster.stages} for cluster in plan.clusters]
    assert len(driver.execute_script(there)) == sum("region0" in each for each in regions)
    driver.get("about:blank")
    server.stop()
