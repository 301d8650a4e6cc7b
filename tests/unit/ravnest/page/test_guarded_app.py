"""Every answer of a guarded application wants the token, and keeps browsers to its own page."""

from starlette.requests import Request
from starlette.responses import PlainTextResponse, Response

from ravnest.page.access import Access
from ravnest.page.guarded_app import content_policy, guarded_app
from tests.support.asgi import asked

TOKEN = "t" * 32
HTML = "<!doctype html><style>p {}</style><script>1;</script>"


async def secret(request: Request) -> Response:
    return PlainTextResponse("secret")


APP = guarded_app(HTML, Access(TOKEN), {"/api/secret": secret})


def test_an_answer_is_given_to_whoever_has_the_token() -> None:
    assert asked(APP, "/api/secret")[0] == 403
    status, headers, text = asked(APP, "/api/secret", {"authorization": f"Bearer {TOKEN}"})
    assert (status, text, headers["cache-control"]) == (200, "secret", "no-store")


def test_the_link_leads_to_the_page_and_the_token_leaves_the_address() -> None:
    status, headers, _ = asked(APP, f"/?token={TOKEN}")
    assert (status, headers["location"]) == (303, "/")
    assert TOKEN in headers["set-cookie"]
    assert "HttpOnly" in headers["set-cookie"]


def test_the_policy_allows_the_pages_own_script_and_style_alone() -> None:
    policy = content_policy(HTML)
    assert policy.count("'sha256-") == 2
    assert policy.startswith("default-src 'none'")
    assert "script-src 'none'" in content_policy("<p>")
