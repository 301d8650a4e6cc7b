"""The application of a plan's page: nodes change places, and the prediction is made anew. It writes no file.

In: a plan, and who may look. Out: `/` (the page), `/api/plan` (the plan as JSON, after the exchanges that the address
names) and `/api/plan.yaml` (the same as a file to download). The exchanges are in the address of each request, so the
server keeps nothing.
"""

import asyncio
import json
import tempfile
from pathlib import Path
from typing import Any

from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse, Response

from cluster_planner import Plan, save_plan, with_swapped_nodes
from ravnest.errors import InvalidInput
from ravnest.page.access import Access
from ravnest.page.guarded_app import guarded_app
from ravnest.page.plan_view import plan_document

_PAGE = Path(__file__).with_name("plan_page.html")
_LONGEST = 100_000


def plan_app(plan: Plan, access: Access) -> Starlette:
    """The application that shows a plan to whoever has access."""
    turn = asyncio.Lock()  # a prediction of a large plan takes a while: one at a time

    async def changed(request: Request) -> Plan:
        swaps = swaps_in(request.query_params.get("swaps", "[]"))
        async with turn:
            return await asyncio.to_thread(with_swapped_nodes, plan, swaps)

    async def view(request: Request) -> Response:
        try:
            return JSONResponse(plan_document(plan, await changed(request)))
        except InvalidInput as error:
            return JSONResponse({"problem": str(error)}, 422)

    async def file(request: Request) -> Response:
        try:
            text = _as_file(await changed(request))
        except InvalidInput as error:
            return JSONResponse({"problem": str(error)}, 422)
        return Response(
            text, media_type="application/yaml", headers={"content-disposition": 'attachment; filename="plan.yaml"'}
        )

    return guarded_app(_PAGE.read_text(encoding="utf-8"), access, {"/api/plan": view, "/api/plan.yaml": file})


def swaps_in(text: str) -> list[tuple[str, str]]:
    """The exchanges that an address names, as JSON: [[node, node], …]. Raises InvalidInput for anything else."""
    wrong = InvalidInput("expected a JSON list of pairs of node names", key="swaps")
    try:
        found: Any = json.loads(text[:_LONGEST])
    except (ValueError, RecursionError):
        raise wrong from None
    if not isinstance(found, list):
        raise wrong
    pairs = []
    for pair in found:
        match pair:
            case [str() as one, str() as other]:
                pairs.append((one, other))
            case _:
                raise wrong
    return pairs


def _as_file(plan: Plan) -> bytes:
    with tempfile.TemporaryDirectory(prefix="ravnest-plan-") as folder:
        path = Path(folder) / "plan.yaml"
        save_plan(plan, path)
        return path.read_bytes()
