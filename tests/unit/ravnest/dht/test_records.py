from dataclasses import replace
from typing import Annotated

import msgspec
import pytest

from ravnest.dht.identity import KeyIdentity, new_identity
from ravnest.dht.records import LONGEST_S, SKEW_S, VALUE_BYTES, Record, Rule, Rules, signed_record
from ravnest.errors import InvalidInput

NOW_S = 1e9
ANNA, BERT = new_identity(), new_identity()


def record(author: KeyIdentity = ANNA, key: bytes = b"k", value: bytes = b"v", lifetime_s: float = 60.0) -> Record:
    return signed_record(author, key, b"s", value, issued_s=NOW_S, lifetime_s=lifetime_s)


def test_a_record_is_accepted_as_it_was_signed_and_with_no_part_changed() -> None:
    rules, good = Rules(), record()
    assert rules.refusal(good, BERT, NOW_S) is None
    changed = {
        "key": b"l",
        "subkey": b"t",
        "value": b"w",
        "author": BERT.public_key,
        "issued_s": NOW_S - 1,
        "expires_s": NOW_S + 61,
        "signature": bytes(64),
    }
    assert set(changed) == set(Record.__struct_fields__)
    for name, value in changed.items():
        refusal = rules.refusal(msgspec.structs.replace(good, **{name: value}), BERT, NOW_S)
        assert refusal == "the signature is wrong", name


def test_times_are_held_to_the_readers_clock() -> None:
    good = record()
    for now_s, reason in (
        (NOW_S - SKEW_S - 1, "issued in the future"),
        (NOW_S + 60, "expired, or expires too late"),
    ):
        assert Rules().refusal(good, ANNA, now_s) == reason
    longest = record(lifetime_s=LONGEST_S)
    assert Rules(otherwise=Rule(longest_s=60.0)).refusal(longest, ANNA, NOW_S) == "expired, or expires too late"
    assert Rules().refusal(longest, ANNA, NOW_S) is None


def test_rules_say_who_may_write_what_and_where() -> None:
    rules = Rules(
        {
            b"run/": Rule(authors=frozenset({ANNA.public_key})),
            b"host/": Rule(owner_in_key=True),
            b"host/number/": Rule(value=Annotated[int, msgspec.Meta(le=9)]),
        },
        otherwise=None,
    )
    mine = b"host/" + ANNA.public_key.hex()[:40].encode()
    owned = b"h/" + ANNA.public_key.hex()[:62].encode()
    assert rules.refusal(record(ANNA, b"run/1"), ANNA, NOW_S) is None
    assert rules.refusal(record(BERT, b"run/1"), ANNA, NOW_S) == "this author may not write this key"
    assert rules.refusal(record(ANNA, mine), ANNA, NOW_S) == "only the owner that the key names may write it"
    assert rules.refusal(record(ANNA, owned), ANNA, NOW_S) == "no rule lets this key be written"
    nine, ten = (record(ANNA, b"host/number/x", msgspec.msgpack.encode(one)) for one in (9, 10))
    assert rules.refusal(nine, ANNA, NOW_S) is None
    assert rules.refusal(ten, ANNA, NOW_S) == "the value does not have the form that this key asks for"
    assert rules.refusal(record(ANNA, b"host/number/x", b""), ANNA, NOW_S) is None, "a withdrawal has no value"


def test_of_two_records_of_one_place_the_later_issued_is_newer() -> None:
    later = signed_record(ANNA, b"k", b"s", b"", issued_s=NOW_S + 1, lifetime_s=5)
    assert later.is_newer_than(record())
    assert not record().is_newer_than(later)
    assert not record().is_newer_than(record())
    other = record(value=b"w")
    assert other.is_newer_than(record()) is not record().is_newer_than(other)


@pytest.mark.parametrize(
    ("key", "changed"),
    [
        ("key", {"key": b""}),
        ("key", {"key": b"k" * 200}),
        ("subkey", {"subkey": b"s" * 65}),
        ("value", {"value": bytes(VALUE_BYTES + 1)}),
        ("lifetime_s", {"lifetime_s": 0.0}),
        ("lifetime_s", {"lifetime_s": LONGEST_S + 1}),
    ],
)
def test_what_is_too_long_is_refused_by_name(key: str, changed: dict[str, object]) -> None:
    parts = {"key": b"k", "subkey": b"s", "value": b"v", "lifetime_s": 1.0, **changed}
    with pytest.raises(InvalidInput) as refused:
        signed_record(ANNA, **parts, issued_s=NOW_S)  # type: ignore[arg-type]
    assert refused.value.key == key


def test_rules_of_the_longest_beginning_count() -> None:
    rules = Rules({b"a": Rule(authors=frozenset()), b"ab": Rule()})
    assert rules.refusal(record(key=b"abc"), ANNA, NOW_S) is None
    assert rules.refusal(record(key=b"ac"), ANNA, NOW_S) == "this author may not write this key"
    assert replace(rules, by_prefix={}).refusal(record(key=b"ac"), ANNA, NOW_S) is None
