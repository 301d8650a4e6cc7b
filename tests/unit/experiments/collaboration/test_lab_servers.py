import pytest

from experiments.collaboration.beside_hivemind import Averagings
from experiments.collaboration.lab_servers import part as part_of
from experiments.collaboration.lab_servers import promised

PROMISE = {servers: promised(servers, 8, 2_000_000) for servers in (1, 2)}


def test_two_servers_are_promised_what_their_links_carry_less_the_average_that_crosses_between_them() -> None:
    assert PROMISE[1] == pytest.approx(5e6 / (8 * 2e6))  # all contributions come to one server, while averages go out
    assert PROMISE[2] == pytest.approx(PROMISE[1] * 2 * 8 / 9)  # half of each, and half of the average for the other


@pytest.mark.parametrize(
    ("two_s", "failed", "held"),
    [(1.85, 0, [True, True, True]), (1.85, 2, [False, True, True]), (2.2, 0, [True, False, False])],
)
def test_two_servers_are_judged_beside_one_and_the_bound_and_no_step_may_lack_a_volunteer(
    two_s: float, failed: int, held: list[bool]
) -> None:
    part = part_of({1: Averagings([3.3], 0), 2: Averagings([two_s], failed)}, PROMISE, "")
    assert [claim.held for claim in part.claims] == held
    assert part.claims[0].measured == f"{failed} of {2 + failed}"
    assert [row[3] for row in part.tables[0].rows] == pytest.approx([3.2 / 3.3, 1.8 / two_s], abs=1e-3)


def test_without_shaped_links_nothing_is_claimed_of_links() -> None:
    part = part_of({1: Averagings([0.1], 0), 2: Averagings([0.1], 0)}, PROMISE, "no root")
    assert [(claim.held, claim.measured) for claim in part.claims] == [
        (True, "0 of 2"),
        (None, "no root"),
        (None, "no root"),
    ]
