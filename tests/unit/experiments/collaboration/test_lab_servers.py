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
    [
        ((3.7, 1.9), 0, [True, True, True]),
        ((3.7, 1.9), 2, [False, True, True]),
        ((4.2, 2.2), 0, [True, False, False]),
    ],
)
def test_two_servers_are_judged_beside_one_and_no_step_may_lack_a_volunteer(
    two_s: tuple[float, float], failed: int, held: list[bool]
) -> None:
    ours = {
        (1, False): Averagings([6.5], 0),
        (2, False): Averagings([two_s[0]], failed),
        (1, True): Averagings([3.3], 0),
        (2, True): Averagings([two_s[1]], 0),
    }
    part = part_of(ours, PROMISE, "")
    assert [claim.held for claim in part.claims] == held
    assert part.claims[0].measured == f"{failed} of {4 + failed}"
    of_that = [row[4] for row in part.tables[0].rows]
    assert of_that == pytest.approx([6.4 / 6.5, 3.6 / two_s[0], 3.2 / 3.3, 1.8 / two_s[1]], abs=1e-3)


def test_without_shaped_links_nothing_is_claimed_of_links() -> None:
    ours = {(servers, delayed): Averagings([0.1], 0) for delayed in (False, True) for servers in (1, 2)}
    claims = [(claim.held, claim.measured) for claim in part_of(ours, PROMISE, "no root").claims]
    assert claims == [(True, "0 of 4"), (None, "no root"), (None, "no root")]
