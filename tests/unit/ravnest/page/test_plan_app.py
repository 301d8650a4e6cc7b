"""The application of a plan's page, asked without sockets."""

import json
from pathlib import Path
from urllib.parse import quote

import pytest

from cluster_planner import load_plan, predicted_again, with_swapped_nodes
from ravnest.errors import InvalidInput
from ravnest.page.access import Access
from ravnest.page.plan_app import plan_app, swaps_in
from tests.support.asgi import asked
from tests.unit.ravnest.simulator.test_fleet import home_plan

TOKEN = "t" * 32
COOKIE = {"cookie": f"ravnest-7070={TOKEN}"}
PLAN = predicted_again(home_plan())
APP = plan_app(PLAN, Access(TOKEN))
FIRST, OTHER = PLAN.clusters[0].stages[0].node, PLAN.clusters[1].stages[-1].node


def with_swaps(*swaps: tuple[str, str]) -> str:
    return f"?swaps={quote(json.dumps(swaps))}"


def test_the_plan_is_shown_as_it_was_given_and_after_exchanges() -> None:
    status, _, text = asked(APP, "/api/plan", COOKIE)
    given = json.loads(text)
    assert status == 200
    assert given["samples_per_s"]["now"] == given["samples_per_s"]["given"] == PLAN.predicted.samples_per_s
    status, _, text = asked(APP, f"/api/plan{with_swaps((FIRST, OTHER))}", COOKIE)
    changed = json.loads(text)
    made = with_swapped_nodes(PLAN, [(FIRST, OTHER)])
    assert status == 200
    assert changed["samples_per_s"] == {"given": PLAN.predicted.samples_per_s, "now": made.predicted.samples_per_s}
    assert changed["clusters"][0]["stages"][0]["node"] == OTHER
    status, _, text = asked(APP, "/api/plan", COOKIE)
    assert json.loads(text) == given, "the server keeps nothing"


def test_the_plan_can_be_downloaded_as_a_file_that_runs(tmp_path: Path) -> None:
    status, headers, text = asked(APP, f"/api/plan.yaml{with_swaps((FIRST, OTHER))}", COOKIE)
    (tmp_path / "plan.yaml").write_text(text, encoding="utf-8")
    assert (status, headers["content-disposition"]) == (200, 'attachment; filename="plan.yaml"')
    assert load_plan(tmp_path / "plan.yaml") == with_swapped_nodes(PLAN, [(FIRST, OTHER)])


@pytest.mark.parametrize("path", ["/", "/api/plan", "/api/plan.yaml"])
def test_without_the_token_nothing_is_shown(path: str) -> None:
    status, _, text = asked(APP, path)
    assert status == 403
    assert FIRST not in text


def test_the_page_asks_nobody_else() -> None:
    status, headers, html = asked(APP, "/", COOKIE)
    assert status == 200
    assert "default-src 'none'" in headers["content-security-policy"]
    assert headers["content-security-policy"].count("'sha256-") == 2
    assert "//" not in html.replace("http://", "x").partition("<script>")[0]
    assert " style=" not in html


def test_an_exchange_that_is_not_possible_is_told() -> None:
    status, _, text = asked(APP, f"/api/plan{with_swaps((FIRST, 'nobody'))}", COOKIE)
    assert (status, json.loads(text)) == (422, {"problem": "swaps: the plan has no node 'nobody'"})
    assert asked(APP, "/api/plan.yaml?swaps=nonsense", COOKIE)[0] == 422


@pytest.mark.parametrize("text", ["", "{}", "[1]", '[["a"]]', '[["a", 1]]', '[["a", "b", "c"]]', "[" * 90_000])
def test_only_pairs_of_names_are_exchanges(text: str) -> None:
    with pytest.raises(InvalidInput, match="expected a JSON list of pairs"):
        swaps_in(text)


def test_exchanges_are_read() -> None:
    assert swaps_in('[["a", "b"], ["c", "d"]]') == [("a", "b"), ("c", "d")]
