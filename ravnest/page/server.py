"""The server of a run's page: Starlette on uvicorn, with server-sent events.

In: a followed run, who may look, and a socket that listens. Out: `/` (the page), `/api/view` (everything as JSON),
`/api/events` (the same as it comes), `/api/links` (all links) and `/metrics` (Prometheus). All of it reads. The run is
looked at once a second at most, by one thread, and only while somebody looks.
"""

import asyncio
import json
import socket
import threading
import time
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Protocol

import msgspec
import uvicorn
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import PlainTextResponse, Response, StreamingResponse

from ravnest.formatting import json_value
from ravnest.page.access import Access
from ravnest.page.guarded_app import guarded_app
from ravnest.page.prometheus import CONTENT_TYPE, metrics_text

MOST_VIEWERS = 32
"""How many browsers may watch at a time."""
_LOOK_S = 1.0
_CATCH_UP_S = 0.05
_CURVES_S = 5.0
_ALIVE_S = 5.0
_STAGES_A_SECOND = 250
"""A run of more stages is sent less often, so that browsers keep up."""
_PAGE = Path(__file__).with_name("page.html")


class Followed(Protocol):
    """What can be shown: FollowedRun."""

    @property
    def behind(self) -> bool: ...
    def look(self) -> None: ...
    def document(self) -> dict[str, object]: ...
    def curves(self) -> dict[str, object]: ...
    def links(self) -> list[object]: ...


class _Looks:
    """The last look at the run, shared by all who watch."""

    def __init__(self, run: Followed, now: Callable[[], float] = time.monotonic) -> None:
        self._run = run
        self._now = now
        self._lock = asyncio.Lock()
        self._next_s = self._curves_s = float("-inf")
        self.document: dict[str, object] = {}
        self.view = self.curves = ""

    async def fresh(self, *, curves: bool = False) -> None:
        """Look again where the last look is too old; `curves`: the curves, too, whatever their age."""
        async with self._lock:
            if self._now() >= self._next_s:
                await asyncio.to_thread(self._look)
            if curves or self._now() >= self._curves_s:
                await asyncio.to_thread(self._draw)

    async def links(self) -> str:
        """All links, as of a look that is not too old."""
        await self.fresh()
        async with self._lock:
            return _dumped({"links": await asyncio.to_thread(self._run.links)})

    def _look(self) -> None:
        self._run.look()
        self.document = self._run.document()
        self.view = _dumped(self.document)
        pause_s = _CATCH_UP_S if self._run.behind else max(_LOOK_S, self.view.count('"stage":') / _STAGES_A_SECOND)
        self._next_s = self._now() + pause_s

    def _draw(self) -> None:
        self.curves = _dumped(self._run.curves())
        self._curves_s = self._now() + _CURVES_S


def page_app(run: Followed, access: Access) -> Starlette:
    """The application that shows a run to whoever has access."""
    looks, viewers = _Looks(run), [0]

    async def view(request: Request) -> Response:
        await looks.fresh(curves=True)
        return Response(f'{looks.view[:-1]},"curves":{looks.curves}}}', media_type="application/json")

    async def links(request: Request) -> Response:
        return Response(await looks.links(), media_type="application/json")

    async def metrics(request: Request) -> Response:
        await looks.fresh()
        problem = looks.document.get("problem")
        if problem is not None:
            return PlainTextResponse(f"{problem}\n", 503)
        return Response(metrics_text(looks.document), media_type=CONTENT_TYPE)

    async def events(request: Request) -> Response:
        if viewers[0] >= MOST_VIEWERS:
            return PlainTextResponse("too many watch already\n", 503)
        return StreamingResponse(stream(), media_type="text/event-stream")

    async def stream() -> AsyncIterator[str]:
        viewers[0] += 1
        try:
            yield "retry: 1000\n\n"
            sent = {"view": "", "curves": ""}
            said_s = 0.0
            while True:
                await looks.fresh()
                for name, text in (("view", looks.view), ("curves", looks.curves)):
                    if text != sent[name]:
                        sent[name], said_s = text, time.monotonic()
                        yield f"event: {name}\ndata: {text}\n\n"
                if time.monotonic() - said_s >= _ALIVE_S:
                    said_s = time.monotonic()
                    yield "event: alive\ndata: {}\n\n"
                await asyncio.sleep(_LOOK_S)
        finally:
            viewers[0] -= 1

    answers = {"/api/view": view, "/api/events": events, "/api/links": links, "/metrics": metrics}
    return guarded_app(_PAGE.read_text(encoding="utf-8"), access, answers)


class PageServer:
    """A page that is served on a socket which listens already."""

    def __init__(self, app: Starlette, listening: socket.socket) -> None:
        self._listening = listening
        config = uvicorn.Config(
            app,
            log_level="warning",
            access_log=False,
            server_header=False,
            lifespan="off",
            timeout_graceful_shutdown=1,
        )
        self._server = uvicorn.Server(config)
        self._thread: threading.Thread | None = None

    def serve(self) -> None:
        """Serve until a signal, or `stop`, ends it."""
        self._server.run(sockets=[self._listening])

    def start(self) -> None:
        """Serve in a thread."""
        self._thread = threading.Thread(target=self.serve, name="page", daemon=True)
        self._thread.start()

    def stop(self) -> None:
        """End, within some two seconds."""
        self._server.should_exit = True
        if self._thread is not None:
            self._thread.join(10.0)


def listen(host: str, port: int, *, others: int = 20) -> socket.socket:
    """A socket that listens on `port`, or, where that is taken, on one of the `others` behind it.

    Raises OSError where all are taken, or the host is not this machine.
    """
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    for tried in range(port, port + others + 1):
        listening = socket.socket(family, socket.SOCK_STREAM)
        listening.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            listening.bind((host, tried))
            listening.listen(128)
        except OSError:
            listening.close()
            if tried == port + others or tried == 0:
                raise
        else:
            return listening
    raise OSError(f"no port is free from {port} on")


def _dumped(found: dict[str, object]) -> str:
    try:
        return msgspec.json.encode(found).decode()
    except UnicodeEncodeError:  # a path whose name is no UTF-8
        return json.dumps(json_value(found), allow_nan=False, separators=(",", ":"))
