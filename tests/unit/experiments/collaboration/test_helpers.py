import pytest

from experiments.collaboration import helpers


def test_the_links_allow_twice_as_many_averagings_by_two_machines_that_take_averages_too(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(helpers, "LINK", 2.0 * helpers.PARAMETERS)  # a vector a second
    assert helpers.bounds(1) == pytest.approx((1 / 16, 1 / 8))
    one_by_one, bound = helpers.bounds(2)
    assert one_by_one == pytest.approx(2 / 17)
    assert bound == pytest.approx(2 / 9)


def test_a_small_world_shares_and_holds_the_same_bytes(monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in (("WIDTH", 600), ("LINK", 30_000.0), ("PIECE_BYTES", 4096), ("PEERS", 3), ("TARGET", 48)):
        monkeypatch.setattr(helpers, name, value)
    seconds, shares, same = helpers.averagings(2, 7)
    assert len(seconds) == 7
    assert shares.count("%") == 2
    assert same
