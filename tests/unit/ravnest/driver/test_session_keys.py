"""The keys of an encrypted run."""

import msgspec
import pytest

from ravnest.driver.session_keys import kept_keys, run_keys
from ravnest.errors import InvalidInput
from tests.support.takeover import STATE


def test_each_process_of_a_run_has_a_key_pair_of_its_own_and_they_all_share_one_list() -> None:
    keys = run_keys(["c0.s0", "c1.s0", "driver"])
    assert len({one.own.secret for one in keys.values()}) == 3
    for name, one in keys.items():
        one.require_own_name(name)
        assert one.allowed == {other: of_other.own.public for other, of_other in keys.items()}
    assert run_keys(["driver"])["driver"].own != keys["driver"].own


def test_kept_keys_are_the_same_and_what_are_none_is_refused() -> None:
    keys = run_keys(["c0.s0", "driver"])
    kept = {name: (each.own.public, each.own.secret) for name, each in keys.items()}
    assert kept_keys(msgspec.structs.replace(STATE, keys=kept)) == keys
    assert kept_keys(STATE) is None
    with pytest.raises(InvalidInput):
        kept_keys(msgspec.structs.replace(STATE, keys={"driver": ("x", "y")}))
