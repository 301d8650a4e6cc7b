"""An application of one page and what it asks for, shown to whoever has access. All of it reads.

In: the page's HTML, who may look, and what answers which path. Out: a Starlette application. Its page runs its own
script and style and asks this server; browsers keep it from anything else.
"""

import base64
import hashlib
import re
from collections.abc import Awaitable, Callable, Mapping

from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import HTMLResponse, PlainTextResponse, RedirectResponse, Response
from starlette.routing import Route

from ravnest.page.access import Access

Answer = Callable[[Request], Awaitable[Response]]

_REFUSED = (
    "<!doctype html><html lang=en><meta charset=utf-8><title>ravnest</title><main><h1>Not shown</h1><p>{}.</main>"
)


def guarded_app(html: str, access: Access, answers: Mapping[str, Answer]) -> Starlette:
    """The application with the page at `/` and these answers to GET. Who has no access gets none of it."""
    policy = content_policy(html)

    def guarded(answer: Answer) -> Answer:
        async def checked(request: Request) -> Response:
            navigates = request.url.path == "/"
            asked = request.query_params.get("token") if navigates else None
            refused = access.refused(request.headers, asked=asked, navigates=navigates)
            if refused is not None and navigates:
                response: Response = HTMLResponse(_REFUSED.format(refused.capitalize()), 403)
            elif refused is not None:
                response = PlainTextResponse(f"{refused}\n", 403)
            else:
                response = await answer(request)
            response.headers.update(
                {
                    "content-security-policy": policy,
                    "cache-control": "no-store",
                    "referrer-policy": "no-referrer",
                    "x-content-type-options": "nosniff",
                    "cross-origin-resource-policy": "same-origin",
                    "cross-origin-opener-policy": "same-origin",
                }
            )
            return response

        return checked

    async def page(request: Request) -> Response:
        if "token" not in request.query_params:
            return HTMLResponse(html)
        response = RedirectResponse("/", 303)  # the token leaves the address bar, and the browser's history
        name = access.cookie(request.headers["host"])
        # Lax, since a link in a message has to lead here: everything here only reads.
        response.set_cookie(name, access.token, httponly=True, samesite="lax", path="/", max_age=30 * 86400)
        return response

    paths = {"/": page, **answers}
    return Starlette(routes=[Route(path, guarded(answer), methods=["GET"]) for path, answer in paths.items()])


def content_policy(html: str) -> str:
    """What a browser may do for the page: run its own script and style, and ask this server. Nothing else."""

    def hashes(tag: str) -> str:
        found = re.findall(rf"<{tag}>(.*?)</{tag}>", html, flags=re.DOTALL)
        digests = (base64.b64encode(hashlib.sha256(each.encode()).digest()).decode() for each in found)
        return " ".join(f"'sha256-{digest}'" for digest in digests) or "'none'"

    return (
        f"default-src 'none'; script-src {hashes('script')}; style-src {hashes('style')}; connect-src 'self';"
        " img-src data:; base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
    )
