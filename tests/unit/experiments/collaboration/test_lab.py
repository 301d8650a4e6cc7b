import pytest

from experiments.collaboration.beside_hivemind import Averagings
from experiments.collaboration.lab import part as part_of
from experiments.collaboration.lab import promised

NAMES = [f"slow{at}" for at in range(7)]


def test_the_program_promises_what_a_slow_link_carries_both_ways_at_once_and_a_ring_less() -> None:
    promise = promised(NAMES, 4_000_000)
    assert promise["bound"] == pytest.approx(0.5)  # 4 MB at 2 MB/s, while the averages come
    assert promise["one after the other"] == pytest.approx(0.25)
    assert promise["bound"] / promise["ring"] == pytest.approx(2 * 7 / 8)


@pytest.mark.parametrize(
    ("delayed_s", "failed", "held"),
    [(2.05, 0, [True, True, True]), (2.05, 1, [False, True, True]), (2.2, 0, [True, False, False])],
)
def test_delayed_steps_are_judged_beside_the_ring_and_the_bound_and_none_may_lack_a_volunteer(
    delayed_s: float, failed: int, held: list[bool]
) -> None:
    promise = {"bound": 0.5, "ring": 0.5 / 1.75, "one after the other": 0.25}
    ours = {False: Averagings([4.2], 0), True: Averagings([delayed_s], failed)}
    part = part_of([3.5], ours, promise, "")
    assert [claim.held for claim in part.claims] == held
    assert part.claims[0].measured == f"{failed} of {2 + failed}"
    assert [row[3] for row in part.tables[0].rows] == pytest.approx([1.0, 0.952, 2 / delayed_s], abs=1e-3)


def test_without_shaped_links_nothing_is_claimed_of_links() -> None:
    part = part_of([0.1], {False: Averagings([0.1], 0), True: Averagings([0.1], 0)}, promised(NAMES, 4000), "no root")
    claims = [(claim.held, claim.measured) for claim in part.claims]
    assert claims == [(True, "0 of 2"), (None, "no root"), (None, "no root")]
