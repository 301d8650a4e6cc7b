from dataclasses import replace

import msgspec
import pytest

from ravnest.dht import Record
from ravnest.errors import InvalidInput
from ravnest.experts.grid import (
    BLOCK,
    Claim,
    Claimed,
    ClaimedBlock,
    Dated,
    Grid,
    HostNews,
    Listens,
    block_of,
    blocks,
    encoded,
    expert_text,
    is_of,
    member_name,
    still_known,
    value_of,
)

GRID = Grid("test", (3, 4))
ANNE, BEN = (bytes([number]) * 32 for number in (1, 2))


def record(key: bytes, subkey: bytes, value: bytes, author: bytes, expires_s: float = 100.0) -> Record:
    return Record(key, subkey, value, author, 0.0, expires_s, bytes(64))


def claim(author: bytes, term: int = 1, updates: int = 0) -> Claim:
    return Claim(term, updates, member_name("host", author))


def test_a_grid_knows_its_experts_prefixes_and_keys() -> None:
    assert len(GRID) == len(list(GRID.experts())) == 12
    assert list(GRID.prefixes()) == [(0,), (1,), (2,)]
    assert GRID.prefix_key(()) == b"experts/test/at/"
    assert GRID.prefix_key((2,)) == b"experts/test/at/2"
    assert [GRID.holds(one) for one in ((2, 3), (3, 0), (0,), (-1, 0))] == [True, False, False, False]
    assert expert_text((2, 3)) == "2.3"


def test_patterns_name_experts() -> None:
    assert GRID.matching("2.3") == [(2, 3)]
    assert GRID.matching("*.3") == [(0, 3), (1, 3), (2, 3)]
    for wrong in ("3.0", "1", "1.x", ""):
        with pytest.raises(InvalidInput):
            GRID.matching(wrong)


@pytest.mark.parametrize(
    ("name", "sides", "key"),
    [("Big", (2,), "name"), ("", (2,), "name"), ("a", (), "grid"), ("a", (0,), "grid"), ("a", (1024,) * 3, "grid")],
)
def test_a_grid_that_cannot_be_is_refused_with_its_key(name: str, sides: tuple[int, ...], key: str) -> None:
    with pytest.raises(InvalidInput) as caught:
        Grid(name, sides)
    assert caught.value.key == key


def block(author: bytes, *claimed: tuple[int, int]) -> bytes:
    """What an author says of a block: last coordinates, and terms."""
    said = tuple(Claimed(last, term, 0) for last, term in claimed)
    return encoded(ClaimedBlock(member_name("host", author), said))


def test_the_greatest_claim_of_an_author_who_may_make_it_counts() -> None:
    key = GRID.prefix_key((1,))
    found = GRID.claims(
        (1,),
        [
            record(key, b"0", block(ANNE, (0, 1), (1, 4)), ANNE),
            record(key, b"0", block(BEN, (0, 2), (1, 3)), BEN),
            record(key, b"0", block(BEN, (2, 9)), ANNE),  # in the name of somebody else
            record(key, b"0", block(ANNE, (9, 1)), ANNE),  # outside the grid
            record(key, b"1", block(ANNE, (3, 1)), ANNE),  # in another block than it is in
            record(key, b"x", block(ANNE, (2, 1)), ANNE),
            record(key, b"0", b"junk", ANNE),
            record(key, b"0", block(b"c" * 32, (0, 3)), b"c" * 32),  # who is no host that is known
        ],
        {claim(ANNE).member, claim(BEN).member},
    )
    assert found == {(1, 0): Dated(claim(BEN, term=2), 100.0), (1, 1): Dated(claim(ANNE, term=4), 100.0)}


def test_a_block_has_the_experts_whose_last_coordinates_are_neighbours() -> None:
    assert {block_of((2, last)) for last in range(BLOCK)} == {(2, 0)}
    assert block_of((2, BLOCK)) == (2, 1)
    assert block_of((BLOCK,)) == (1,)
    claims = {(2, 1): claim(ANNE, 3, 4), (2, BLOCK): claim(ANNE), (2, 0): claim(ANNE)}
    name = claim(ANNE).member
    assert blocks(claims) == {
        (2, 0): ClaimedBlock(name, (Claimed(0, 1, 0), Claimed(1, 3, 4))),
        (2, 1): ClaimedBlock(name, (Claimed(BLOCK, 1, 0),)),
    }
    assert blocks({}) == {}


def test_of_claims_of_one_term_the_one_with_more_updates_counts() -> None:
    assert max(claim(ANNE, 2, 5), claim(BEN, 2, 4), claim(BEN, 1, 99)) == claim(ANNE, 2, 5)


def test_next_coordinates_are_those_of_the_grid() -> None:
    records = [record(b"k", subkey, b"\xc3", ANNE) for subkey in (b"0", b"2", b"3", b"99999", b"-1", b"")]
    assert GRID.next_coordinates((), records, [claim(ANNE).member]) == {0, 2}
    assert GRID.next_coordinates((), records, [claim(BEN).member]) == set()


def test_members_speak_for_themselves_only() -> None:
    anne = Listens(member_name("desk", ANNE), "127.0.0.1", 1, 2)
    news = HostNews(anne, 3, 4, 1.0, 0.1, 7)
    mine = record(GRID.hosts_key, b"a", encoded(news), ANNE)
    false = record(GRID.hosts_key, b"b", encoded(news), BEN)
    assert GRID.members([mine, false], HostNews) == {anne.member: Dated(news, 100.0)}
    assert GRID.members([mine], Listens) == {}


def test_only_who_knows_the_token_is_a_member() -> None:
    grid, name = replace(GRID, token=bytes(16)), member_name("desk", ANNE)
    proofs = {
        "its own": grid.proof_of(ANNE),
        "of another member": grid.proof_of(BEN),
        "by another token": replace(GRID, token=bytes(15) + b"x").proof_of(ANNE),
        "of another grid": replace(grid, name="other").proof_of(ANNE),
        "none": b"",
    }
    said = {what: Listens(name, "127.0.0.1", 1, 2, proof=proof) for what, proof in proofs.items()}
    read = {what: grid.members([record(b"k", b"a", encoded(one), ANNE)], Listens) for what, one in said.items()}
    assert {what for what, found in read.items() if found} == {"its own"}
    assert len(grid.proof_of(ANNE)) == 16
    assert "token" not in repr(grid)


def test_values_are_bounded() -> None:
    port = msgspec.msgpack.encode([member_name("desk", ANNE), "host", 70_000, 1])
    assert value_of(record(b"k", b"", port, ANNE), Listens) is None
    said = ClaimedBlock(claim(ANNE).member, (Claimed(1, 2, 3),))
    assert value_of(record(b"k", b"", encoded(said), ANNE), ClaimedBlock) == said
    too_many = msgspec.msgpack.encode([said.member, [[1, 2, 3]] * (BLOCK + 1)])
    assert value_of(record(b"k", b"", too_many, ANNE), ClaimedBlock) is None


def test_what_a_look_misses_counts_until_it_expires() -> None:
    old = {(0, 0): Dated(claim(ANNE), 10.0), (0, 1): Dated(claim(ANNE), 30.0), (0, 2): Dated(claim(BEN, 3), 30.0)}
    new = {(0, 2): Dated(claim(ANNE, 2), 40.0), (0, 3): Dated(claim(BEN), 40.0)}
    known = still_known(old, new, now_s=20.0)
    assert known == {(0, 1): old[0, 1], (0, 2): old[0, 2], (0, 3): new[0, 3]}
    newer = {(0, 2): Dated(claim(ANNE, 4), 40.0)}
    assert still_known(old, newer, now_s=20.0)[0, 2] == newer[0, 2]


@pytest.mark.parametrize("label", ["\x1b[2J", "a b", "", "x" * 41, "a\n"])
def test_a_name_that_does_something_to_a_terminal_is_nobodys(label: str) -> None:
    name = f"{label}.{ANNE.hex()[:16]}"
    value = msgspec.msgpack.encode([name, "host", 1, 1])
    assert GRID.members([record(GRID.callers_key, b"a", value, ANNE)], Listens) == {}


def test_a_members_name_ends_with_its_key() -> None:
    assert is_of(member_name("desk-1", ANNE), ANNE)
    assert not is_of(member_name("desk-1", ANNE), BEN)
    with pytest.raises(InvalidInput):
        member_name("a name", ANNE)
