import json

from ravnest.page.access import Access
from ravnest.page.members_app import members_app
from tests.support import asgi

TOKEN = "t" * 32
COOKIE = {"cookie": f"ravnest-7070={TOKEN}"}


def test_members_are_looked_at_once_a_second_at_most() -> None:
    looks: list[int] = []
    clock = [0.0]

    def look() -> dict[str, object]:
        looks.append(1)
        return {"people": [], "looks": len(looks)}

    app = members_app(look, Access(TOKEN), lambda: clock[0])
    for now_s, expected in ((0.0, 1), (0.5, 1), (1.5, 2)):
        clock[0] = now_s
        status, _, text = asgi.asked(app, "/api/members", COOKIE)
        assert (status, json.loads(text)["looks"]) == (200, expected)


def test_prometheus_reads_the_same_look() -> None:
    people = {"name": "choir", "kind": "collaboration", "steps": 3, "samples": 9, "loss": None, "volunteers": 1}
    people |= {"step_s": 0.5, "age_s": 1.0, "held_out": None, "people": [], "people_in_all": 0}
    status, headers, text = asgi.asked(members_app(lambda: people, Access(TOKEN)), "/metrics", COOKIE)
    assert (status, headers["content-type"]) == (200, "text/plain; version=0.0.4; charset=utf-8")
    assert 'ravnest_collaboration_steps{collaboration="choir"} 3\n' in text


def test_without_the_token_nobody_looks() -> None:
    def look() -> dict[str, object]:
        raise AssertionError("nobody may look")

    app = members_app(look, Access(TOKEN))
    for path in ("/", "/api/members", "/metrics"):
        status, _, text = asgi.asked(app, path)
        assert status == 403
        assert "<script" not in text


def test_the_page_loads_nothing_from_elsewhere() -> None:
    status, headers, html = asgi.asked(members_app(dict, Access(TOKEN)), "/", COOKIE)
    assert status == 200
    assert "unsafe" not in headers["content-security-policy"]
    assert "http://" not in html.replace("http://www.w3.org/2000/svg", "")
    assert " style=" not in html
