"""Applications of pages, asked without sockets."""

import asyncio
from typing import Any


def asked(
    app: Any, path: str, headers: dict[str, str] | None = None, *, times: int = 1, method: str = "GET"
) -> tuple[int, dict[str, str], str]:
    """Ask an application for `/path?query`; status, headers and text of the last answer.

    A stream is left after `times` pieces.
    """
    path, _, query = path.partition("?")
    sent: list[Any] = []

    async def ask() -> None:
        given = {"host": "127.0.0.1:7070", **(headers or {})}
        scope = {
            "type": "http",
            "asgi": {"version": "3.0"},
            "http_version": "1.1",
            "method": method,
            "scheme": "http",
            "path": path,
            "raw_path": path.encode(),
            "query_string": query.encode(),
            "headers": [(name.encode(), value.encode()) for name, value in given.items()],
            "client": ("127.0.0.1", 1),
            "server": ("127.0.0.1", 7070),
        }
        left = asyncio.Event()

        async def receive() -> dict[str, Any]:
            await left.wait()
            return {"type": "http.disconnect"}

        async def send(message: Any) -> None:
            sent.append(message)
            if sum("body" in each for each in sent) >= times and path == "/api/events":
                left.set()
                await asyncio.sleep(0)

        await asyncio.wait_for(app(scope, receive, send), 10)

    asyncio.run(ask())
    start = next(each for each in sent if each["type"] == "http.response.start")
    text = b"".join(each.get("body", b"") for each in sent).decode()
    return start["status"], {name.decode(): value.decode() for name, value in start["headers"]}, text
