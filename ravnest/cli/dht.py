"""`ravnest dht`: starts a node of a hash table, stores in one, looks up, and shows how a table is.

In: the commands' options. Out: lines, or with --json one document (for `start` one line for each report). The exit code
is 1 when a key has no records, or when no node keeps what was to be stored. Everything else is `ravnest.dht`.
"""

from __future__ import annotations

import asyncio
import signal
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, TypeVar

import typer

if TYPE_CHECKING:
    from ravnest.dht import HashTable, KeyIdentity

NOT_FOUND = 1
PORT = 7700

dht = typer.Typer(no_args_is_help=True, help="A hash table over peers that need not trust each other.")

Peers = Annotated[
    list[str] | None,
    typer.Option("--peer", metavar="HOST:PORT", help="A node of the table; may be given several times."),
]
KeyFile = Annotated[
    Path | None, typer.Option("--key-file", help="The node's private key; made if there is none. A new one without it.")
]
Deadline = Annotated[float, typer.Option("--deadline-s", min=0.1, max=3600.0, help="Seconds to join, find or store.")]
AsJson = Annotated[bool, typer.Option("--json", help="Print JSON.")]

_Result = TypeVar("_Result")


@dht.command(epilog="Example: ravnest dht start --listen 0.0.0.0:7700 --key-file table.key")
def start(
    listen: Annotated[
        list[str] | None,
        typer.Option(metavar="ADDRESS:PORT", help=f"One of IPv4, one of IPv6, or both. Default: 0.0.0.0:{PORT}"),
    ] = None,
    peer: Peers = None,
    key_file: KeyFile = None,
    outwards_only: Annotated[
        bool, typer.Option("--outwards-only", help="Others cannot reach this machine: it keeps nothing for them.")
    ] = False,
    report_every_s: Annotated[float, typer.Option(min=1.0, max=86_400.0, help="Seconds between two reports.")] = 60.0,
    seconds: Annotated[float | None, typer.Option(min=0.0, help="End after so long; without it, when stopped.")] = None,
    deadline_s: Deadline = 20.0,
    as_json: AsJson = False,
) -> None:
    """Start a node: the first of a new table, or with --peer one more of a table that there is."""
    from ravnest.dht import HashTable

    async def run() -> None:
        table = await HashTable.opened(
            listen or [f"0.0.0.0:{PORT}"],
            peer or [],
            identity=_identity(key_file),
            outwards_only=outwards_only,
            deadline_s=deadline_s,
        )
        stop = asyncio.Event()
        loop = asyncio.get_running_loop()
        loop.add_signal_handler(signal.SIGTERM, stop.set)
        ends_s = None if seconds is None else loop.time() + seconds
        try:
            while not stop.is_set():
                _report(table, as_json)
                left_s = report_every_s if ends_s is None else min(report_every_s, ends_s - loop.time())
                if left_s <= 0:
                    break
                try:
                    await asyncio.wait_for(stop.wait(), left_s)
                except TimeoutError:
                    continue
        finally:
            await table.close()

    _run(run)


@dht.command(epilog="Example: ravnest dht get experts/7 --peer 192.0.2.1:7700")
def get(
    key: Annotated[str, typer.Argument(help="The key, as text.")],
    peer: Peers = None,
    thorough: Annotated[
        bool, typer.Option("--thorough", help="Ask all of the nearest nodes, and believe no copy.")
    ] = False,
    deadline_s: Deadline = 20.0,
    as_json: AsJson = False,
) -> None:
    """Look up the records of a key, the newest first."""

    async def look(table: HashTable) -> Any:
        return await table.get(key.encode(), thorough=thorough, deadline_s=deadline_s)

    found = _with_table(peer, None, deadline_s, look)
    if as_json:
        records = [
            {
                "subkey": _text(record.subkey),
                "value": _text(record.value),
                "author": record.author.hex(),
                "issued_s": record.issued_s,
                "expires_s": record.expires_s,
            }
            for record in found.records
        ]
        document = {"key": key, "records": records, "hops": found.hops, "requests": found.requests}
        _print_json({**document, "complete": found.complete})
    else:
        for record in found.records:
            typer.echo(f"{_text(record.subkey)}\t{_text(record.value)}\tby {record.author.hex()[:16]}")
        if not found.records:
            typer.echo(f"no records of {key}" + ("" if found.complete else ", and the time was over"), err=True)
    if not found.records:
        raise typer.Exit(NOT_FOUND)


@dht.command(epilog="Example: ravnest dht store greeting hello --peer 192.0.2.1:7700 --key-file mine.key")
def store(
    key: Annotated[str, typer.Argument(help="The key, as text of at most 64 bytes.")],
    value: Annotated[str, typer.Argument(help="The value, at most 600 bytes; an empty one withdraws.")],
    peer: Peers = None,
    subkey: Annotated[str, typer.Option(help="The place under the key, at most 64 bytes.")] = "",
    lifetime_s: Annotated[float, typer.Option(help="Seconds until it expires, at most a day.")] = 3600.0,
    key_file: KeyFile = None,
    deadline_s: Deadline = 20.0,
    as_json: AsJson = False,
) -> None:
    """Sign a value and store it; only the same key file can change or withdraw it."""
    from cluster_planner import format_count
    from ravnest.dht import Entry

    entry = Entry(key.encode(), subkey.encode(), value.encode(), lifetime_s)

    async def put(table: HashTable) -> Any:
        return (await table.store(entry, deadline_s=deadline_s))[0]

    stored = _with_table(peer, key_file, deadline_s, put)
    refused = {reason.name.lower(): number for reason, number in stored.refused.items()}
    if as_json:
        _print_json({"key": key, "kept": stored.kept, "refused": refused, "hops": stored.hops})
    else:
        reasons = ", ".join(f"{number} refused it as {reason}" for reason, number in refused.items())
        typer.echo(f"kept by {format_count(stored.kept, 'node')}" + (f"; {reasons}" if reasons else ""))
    if not stored.kept:
        raise typer.Exit(NOT_FOUND)


@dht.command(epilog="Example: ravnest dht health --peer 192.0.2.1:7700 --json")
def health(peer: Peers = None, deadline_s: Deadline = 20.0, as_json: AsJson = False) -> None:
    """Search a table for random ids, and show how large it is and how well it answers."""

    async def look(table: HashTable) -> Any:
        return await table.survey(deadline_s=deadline_s)

    found = _with_table(peer, None, deadline_s, look)
    if as_json:
        _print_json(asdict(found))
        return
    trip = "unknown" if found.round_trip_s is None else f"{found.round_trip_s * 1e3:.1f} ms"
    typer.echo(f"nodes: about {found.nodes:.0f} ({found.met} answered)")
    typer.echo(
        f"searches: {found.searches}, {found.complete:.0%} complete, {found.requests_per_search:.1f} requests each"
    )
    typer.echo(f"unanswered requests: {found.unanswered:.1%}; round trip: {trip}")


def _with_table(
    peers: Sequence[str] | None,
    key_file: Path | None,
    deadline_s: float,
    use: Callable[[HashTable], Awaitable[_Result]],
) -> _Result:
    """Let `use` have a node that has joined through the peers and keeps nothing."""
    from ravnest.dht import HashTable
    from ravnest.errors import InvalidInput

    if not peers:
        raise InvalidInput("expected the address of a node of the table, as HOST:PORT", key="--peer")

    async def run() -> _Result:
        identity = _identity(key_file)
        table = await HashTable.opened(None, peers, identity=identity, outwards_only=True, deadline_s=deadline_s)
        try:
            return await use(table)
        finally:
            await table.close()

    return _run(run)


def _run(run: Callable[[], Awaitable[_Result]]) -> _Result:
    """Run it, and name the option in an error about an argument of the Python door."""
    from ravnest.errors import InvalidInput

    async def main() -> _Result:
        return await run()

    try:
        return asyncio.run(main())
    except InvalidInput as error:
        if error.path is None and error.key in {"listen", "peer", "subkey", "lifetime_s"}:
            option = "--" + error.key.replace("_", "-")
            raise InvalidInput(error.message, key=option, hint=error.hint) from error
        raise


def _identity(path: Path | None) -> KeyIdentity:
    from ravnest.dht import new_identity, read_identity

    if path is None:
        return new_identity()
    if path.exists():
        return read_identity(path)
    made = new_identity()
    made.write(path)
    return made


def _report(table: HashTable, as_json: bool) -> None:
    addresses = [str(address) for address in table.addresses]
    now = table.health()
    if as_json:
        _print_json({**asdict(now), "id": now.id.hex(), "listens": addresses, "dropped_datagrams": table.dropped})
    else:
        typer.echo(
            f"{now.id.hex()[:16]} at {', '.join(addresses)}: {now.contacts} contacts, {now.records} records "
            f"({now.record_bytes / 2**20:.1f} MiB), {now.refused_records} refused, {now.blocked} blocked"
        )


def _text(data: bytes) -> str:
    """As text, where it is; else in hex."""
    text = data.decode(errors="replace")
    return text if text.isprintable() and "\ufffd" not in text else data.hex()


def _print_json(document: Any) -> None:
    import json

    typer.echo(json.dumps(document, allow_nan=False))
