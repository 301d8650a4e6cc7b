"""The page's application, asked without sockets; a browser asks the whole in tests/integration/test_page.py."""

import json
import re
import socket

import pytest

from ravnest.page.access import Access
from ravnest.page.guarded_app import content_policy
from ravnest.page.server import listen, page_app
from tests.support import asgi

TOKEN = "t" * 32
COOKIE = {"cookie": f"ravnest-7070={TOKEN}"}


class Shown:
    """A run that was looked at."""

    behind = False

    def __init__(self, **document: object) -> None:
        self.looks, self.told = 0, {"run": {"name": "r", "state": "running"}, **document}

    def look(self) -> None:
        self.looks += 1

    def document(self) -> dict[str, object]:
        return {**self.told, "looks": self.looks}

    def curves(self) -> dict[str, object]:
        return {"loss": {}}

    def links(self) -> list[object]:
        return [{"from": "a", "to": "b"}]


def asked(
    run: Shown, path: str, headers: dict[str, str] | None = None, *, times: int = 1, method: str = "GET"
) -> tuple[int, dict[str, str], str]:
    """Ask the application of the run; status, headers and text of the last answer."""
    return asgi.asked(page_app(run, Access(TOKEN)), path, headers, times=times, method=method)


@pytest.mark.parametrize("path", ["/", "/api/view", "/api/events", "/api/links", "/metrics", "/?token=wrong"])
def test_without_the_token_nothing_is_shown(path: str) -> None:
    run = Shown()
    status, _, text = asked(run, path)
    assert status == 403
    assert "token is missing or wrong" in text.lower()
    assert run.looks == 0
    assert "<script" not in text


def test_the_link_gives_the_token_to_the_browser_and_leaves_the_address_bar() -> None:
    status, headers, _ = asked(Shown(), f"/?token={TOKEN}")
    assert (status, headers["location"]) == (303, "/")
    cookie = headers["set-cookie"].lower()
    assert cookie.startswith(f"ravnest-7070={TOKEN};")
    assert "httponly" in cookie
    assert "samesite=lax" in cookie


def test_the_page_may_run_its_own_script_and_reach_its_own_server_alone() -> None:
    status, headers, html = asked(Shown(), "/", COOKIE)
    policy = headers["content-security-policy"]
    assert status == 200
    assert policy == content_policy(html)
    assert "default-src 'none'" in policy
    assert "unsafe" not in policy
    assert policy.count("'sha256-") == html.count("<script>") + html.count("<style>") == 2
    assert not re.findall(r"""(?:src|href)=["']?(?:https?:)?//""", html)
    assert " style=" not in html


def test_everything_is_one_document() -> None:
    status, headers, text = asked(Shown(), "/api/view", COOKIE)
    assert (status, headers["content-type"], headers["cache-control"]) == (200, "application/json", "no-store")
    assert json.loads(text) == {"run": {"name": "r", "state": "running"}, "looks": 1, "curves": {"loss": {}}}


def test_a_name_that_is_no_utf_8_is_shown_as_it_can_be() -> None:
    """As that of a folder whose name is no text: Python holds such bytes as lone surrogates."""
    named = Shown(run={"name": "caf\udce9", "state": "running"}, elsewhere=float("nan"))
    status, _, text = asked(named, "/api/view", COOKIE)
    assert status == 200
    assert json.loads(text)["run"]["name"] == "caf\udce9"
    assert json.loads(text)["elsewhere"] is None


def test_all_links_can_be_asked_for() -> None:
    status, headers, text = asked(Shown(), "/api/links", COOKIE)
    assert (status, headers["content-type"]) == (200, "application/json")
    assert json.loads(text) == {"links": [{"from": "a", "to": "b"}]}


def test_events_begin_with_all_that_is_known() -> None:
    status, headers, text = asked(Shown(), "/api/events", COOKIE, times=3)
    assert status == 200
    assert headers["content-type"].startswith("text/event-stream")
    assert text.startswith("retry: 1000\n\nevent: view\ndata: {")
    assert 'event: curves\ndata: {"loss":{}}\n\n' in text


def test_a_run_that_cannot_be_shown_has_no_figures() -> None:
    assert asked(Shown(problem="no plan"), "/metrics", COOKIE)[::2] == (503, "no plan\n")


def test_nothing_but_looking_is_possible() -> None:
    for path in ("/", "/api/view", "/metrics"):
        assert asked(Shown(), path, COOKIE, method="POST")[0] == 405
    assert asked(Shown(), "/plan.yaml", COOKIE)[0] == 404


def test_a_port_that_is_taken_is_passed_over() -> None:
    first = listen("127.0.0.1", 0)
    port = first.getsockname()[1]
    with first, pytest.raises(OSError):
        listen("127.0.0.1", port, others=0)
    with pytest.raises(OSError), socket.socket():
        listen("192.0.2.1", 0)
