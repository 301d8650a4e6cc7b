"""The application of a page of those who take part where there is no plan: people of a collaboration, hosts of experts.

In: what looks at them, and who may look. Out: `/` (the page), `/api/members` (what was found, as JSON) and `/metrics`
(Prometheus). One look is made at a time, every second at most, and only while somebody looks.
"""

import asyncio
import time
from collections.abc import Callable
from pathlib import Path

from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse, Response

from ravnest.page.access import Access
from ravnest.page.guarded_app import guarded_app
from ravnest.page.prometheus import CONTENT_TYPE, members_text

_PAGE = Path(__file__).with_name("members_page.html")
_LOOK_S = 1.0


def members_app(
    look: Callable[[], dict[str, object]], access: Access, now: Callable[[], float] = time.monotonic
) -> Starlette:
    """The application that shows what `look` finds, to whoever has access."""
    turn = asyncio.Lock()
    last: dict[str, object] = {}
    next_s = float("-inf")

    async def found() -> dict[str, object]:
        nonlocal last, next_s
        async with turn:
            if now() >= next_s:
                last = await asyncio.to_thread(look)
                next_s = now() + _LOOK_S
            return last

    async def members(request: Request) -> Response:
        return JSONResponse(await found())

    async def metrics(request: Request) -> Response:
        return Response(members_text(await found()), media_type=CONTENT_TYPE)

    answers = {"/api/members": members, "/metrics": metrics}
    return guarded_app(_PAGE.read_text(encoding="utf-8"), access, answers)
