"""Nodes of the hash table with sockets, real signatures and a real clock, on loopback; and the command."""

import asyncio
import json
import re
import signal
import socket
import subprocess
import sys
import time
from itertools import groupby
from pathlib import Path

import pytest
from typer.testing import CliRunner

from ravnest.cli.main import app
from ravnest.dht import Entry, HashTable, Rule, Rules, hash_table, new_identity
from ravnest.dht.messages import AnyMessage, Find, encoded
from ravnest.errors import InvalidInput, TableUnreachable
from ravnest.experts.table_thread import TableThread

pytestmark = pytest.mark.timeout(60)


def entry(key: bytes, value: bytes = b"v") -> Entry:
    return Entry(key, b"", value, 600.0)


async def several(count: int) -> list[HashTable]:
    first = await HashTable.opened(["127.0.0.1:0"])
    others = [await HashTable.opened(["127.0.0.1:0"], [str(first.addresses[0])]) for _ in range(count - 1)]
    return [first, *others]


def test_what_is_stored_is_found_and_outlives_the_first_node() -> None:
    async def run() -> None:
        tables = await several(7)
        keys = [b"%d" % number for number in range(20)]
        stored = await tables[3].store(*map(entry, keys))
        assert {one.kept for one in stored} == {5}
        await tables[0].close()
        for reader in (tables[4], tables[6]):
            found = await reader.get_many(keys)
            assert [[record.value for record in found[key].records] for key in keys] == [[b"v"]] * 20
        late = await HashTable.opened(["127.0.0.1:0"], [str(tables[1].addresses[0])], outwards_only=True)
        assert (await late.get(b"7", thorough=True)).records[0].value == b"v"
        assert (await late.survey()).met == 6
        assert late.health().records == 0
        for table in [*tables[1:], late]:
            await table.close()

    asyncio.run(run())


def test_ipv6_and_ipv4_nodes_meet_through_one_that_has_both() -> None:
    async def run() -> None:
        both = await HashTable.opened(["127.0.0.1:0", "[::1]:0"])
        four, six = (str(address) for address in both.addresses)
        old, new = await HashTable.opened(["127.0.0.1:0"], [four]), await HashTable.opened(["[::1]:0"], [six])
        await old.store(entry(b"k", b"from IPv4"))
        assert (await new.get(b"k")).records[0].value == b"from IPv4"
        for table in (both, old, new):
            await table.close()

    asyncio.run(run())


def test_one_port_serves_ipv4_and_ipv6_at_all_addresses() -> None:
    async def run() -> None:
        with socket.socket(socket.AF_INET6, socket.SOCK_DGRAM) as free:
            free.bind(("::", 0))
            port = free.getsockname()[1]
        table = await HashTable.opened([f"0.0.0.0:{port}", f"[::]:{port}"])
        for peer in (f"127.0.0.1:{port}", f"[::1]:{port}"):
            reader = await HashTable.opened(None, [peer], outwards_only=True)
            assert (await reader.store(entry(peer.encode())))[0].kept == 1
            await reader.close()
        await table.close()

    asyncio.run(run())


def test_who_only_opens_connections_reaches_peers_of_either_kind_and_one_whose_name_is_gone_keeps_nobody_out() -> None:
    async def run() -> None:
        six, four = await HashTable.opened(["[::1]:0"]), await HashTable.opened(["127.0.0.1:0"])
        peers = [str(table.addresses[0]) for table in (six, four)]
        for peer in peers:
            reader = await HashTable.opened(None, ["nobody.invalid:7700", peer], outwards_only=True)
            assert (await reader.store(entry(b"k")))[0].kept == 1
            await reader.close()
        with pytest.raises(InvalidInput, match="peer: expected a peer with an address of IPv4"):
            await HashTable.opened(["127.0.0.1:0"], peers[:1])
        with pytest.raises(InvalidInput, match="peer: the name service does not know 'nobody"):
            await HashTable.opened(None, ["nobody.invalid:7700"])
        await six.close()
        await four.close()

    asyncio.run(run())


def test_answers_that_came_while_a_process_did_not_run_are_not_late(monkeypatch: pytest.MonkeyPatch) -> None:
    sent: list[Find] = []

    def counted(message: AnyMessage) -> bytes:
        if isinstance(message, Find):
            sent.append(message)
        return encoded(message)

    monkeypatch.setattr(hash_table, "encoded", counted)

    async def run(peer: str) -> None:
        table = await HashTable.opened(["127.0.0.1:0"], [peer])
        sent.clear()
        found = asyncio.create_task(table.get_many([b"%d" % number for number in range(32)]))
        await asyncio.sleep(0)
        assert len(sent) == 32
        time.sleep(1.5)  # as on a machine that is too busy: all time-outs are over, and all answers have come
        assert all(one.complete for one in (await found).values())
        assert [len(list(same)) for _, same in groupby(sorted(one.nonce for one in sent))] == [1] * 32
        assert table.health().requests_failed == 0
        await table.close()

    there = TableThread(["127.0.0.1:0"], [], new_identity())
    try:
        asyncio.run(run(there.addresses[0]))
    finally:
        there.close()


def test_rules_are_kept_by_each_node_and_junk_is_dropped() -> None:
    async def run() -> None:
        owner = new_identity()
        rules = Rules({b"run/": Rule(authors=frozenset({owner.public_key}))})
        first = await HashTable.opened(["127.0.0.1:0"], rules=rules)
        peer = str(first.addresses[0])
        stranger = await HashTable.opened(["127.0.0.1:0"], [peer], outwards_only=True)
        allowed = await HashTable.opened(["127.0.0.1:0"], [peer], outwards_only=True, identity=owner)
        assert (await stranger.store(entry(b"run/1")))[0].kept == 0
        assert (await allowed.store(entry(b"run/1", b"mine")))[0].kept == 1
        with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as junk:
            for datagram in (b"", b"\x00" * 3000, b"\x97\x01", bytes(range(256))):
                junk.sendto(datagram, ("127.0.0.1", first.addresses[0].port))
        assert [one.value for one in (await stranger.get(b"run/1")).records] == [b"mine"]
        assert first.dropped == 4
        for table in (first, stranger, allowed):
            await table.close()

    asyncio.run(run())


def test_nobody_there_and_a_port_in_use_are_said() -> None:
    async def run() -> None:
        with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as silent:
            silent.bind(("127.0.0.1", 0))
            address = f"127.0.0.1:{silent.getsockname()[1]}"
            with pytest.raises(TableUnreachable, match=re.escape(address)):
                await HashTable.opened(["127.0.0.1:0"], [address], deadline_s=0.2)
            with pytest.raises(InvalidInput, match=f"listen: cannot listen at {re.escape(address)}"):
                await HashTable.opened([address])

    asyncio.run(run())


def test_the_command_starts_a_node_stores_looks_up_and_shows_the_table(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "ravnest", "dht", "start", "--listen", "127.0.0.1:0", "--json"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        try:
            assert process.stdout is not None
            (address,) = json.loads(process.stdout.readline())["listens"]
            key = str(tmp_path / "mine.key")

            def said(*words: str, code: int = 0) -> str:
                told = CliRunner().invoke(app, ["dht", *words, "--peer", address])
                assert told.exit_code == code, told.output
                return told.output

            assert "no records of greeting" in said("get", "greeting", code=1)
            for value in ("hello", "goodbye"):
                assert said("store", "greeting", value, "--key-file", key) == "kept by 1 node\n"
            (record,) = json.loads(said("get", "greeting", "--json"))["records"]
            assert record["value"] == "goodbye"
            assert json.loads(said("health", "--json"))["nodes"] == 1.0
            process.send_signal(signal.SIGTERM)
            assert process.wait(20) == 0
        finally:
            process.kill()
