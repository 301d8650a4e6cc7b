"""What needs no socket; tests/integration/test_hash_table_nodes.py has the rest."""

import asyncio
import time

import pytest

from ravnest.dht import Entry, HashTable
from ravnest.dht.hash_table import parsed_endpoint
from ravnest.errors import InvalidInput


@pytest.mark.parametrize(
    ("text", "endpoint"),
    [("127.0.0.1:7700", ("127.0.0.1", 7700)), ("[::1]:0", ("::1", 0)), ("host.example:65535", ("host.example", 65535))],
)
def test_an_endpoint_is_a_host_and_a_port(text: str, endpoint: tuple[str, int]) -> None:
    assert parsed_endpoint(text) == endpoint


@pytest.mark.parametrize("text", ["", "host", "host:", ":7", "host:x", "host:65536", "::1:7700", "host:-1", "host:²"])
def test_what_is_no_endpoint_is_refused_with_the_arguments_name(text: str) -> None:
    with pytest.raises(InvalidInput) as refused:
        parsed_endpoint(text, "peer")
    assert refused.value.key == "peer"
    assert repr(text) in str(refused.value)


def test_after_a_sleep_the_clock_is_right_again_and_it_never_goes_back(monkeypatch: pytest.MonkeyPatch) -> None:
    async def run() -> None:
        table = await HashTable.opened([])
        await table.store(Entry(b"k", b"", b"before", 60.0))
        wall_s = time.time()
        monkeypatch.setattr(time, "time", lambda: wall_s + 3600)
        assert (await table.get(b"k")).records == ()
        await table.store(Entry(b"k", b"", b"after", 60.0))
        monkeypatch.setattr(time, "time", lambda: wall_s - 3600)
        (record,) = (await table.get(b"k")).records
        assert (record.value, record.issued_s >= wall_s + 3600) == (b"after", True)
        await table.close()

    asyncio.run(run())


def test_a_node_alone_keeps_and_finds_what_it_stores_until_it_is_closed() -> None:
    async def run() -> None:
        table = await HashTable.opened([])
        assert (await table.store(Entry(b"k", b"", b"v", 60.0)))[0].kept == 1
        assert (await table.get(b"k")).records[0].value == b"v"
        with pytest.raises(InvalidInput, match="key: expected 1 to 64 bytes"):
            await table.store(Entry(b"", b"", b"v", 60.0))
        assert (await table.get_many([b"k", b"l"]))[b"l"].records == ()
        table.arrived(b"\xff" * 2000, ("127.0.0.1", 9))
        table.arrived(b"nonsense", ("::ffff:127.0.0.1", 9))
        assert table.dropped == 2
        assert (await table.survey()).nodes == 0.0
        await table.close()
        with pytest.raises(InvalidInput, match="closed"):
            await table.get(b"k")

    asyncio.run(run())
