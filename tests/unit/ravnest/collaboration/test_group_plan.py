import math
import random

import numpy as np
import pytest

from ravnest.collaboration.averaging_plan import shares_for
from ravnest.collaboration.group_plan import GroupPlan, best_group_plan, dealt, group_plan, layout
from ravnest.collaboration.links import Collaboration, PeerLinks
from ravnest.errors import InvalidInput

VECTOR = 1e6


def drawn(seed: int, count: int, helpers: float = 0.1) -> Collaboration:
    draw = random.Random(seed)
    peers = tuple(
        PeerLinks(
            f"p{at}",
            draw.choice((1e6, 5e6, 2e7)) * draw.uniform(0.7, 1.3),
            draw.choice((5e6, 2e7)) * draw.uniform(0.7, 1.3),
            0.0 if at and draw.random() < helpers else draw.uniform(2, 40),
            keeps_state=draw.random() < 0.05,
        )
        for at in range(count)
    )
    return Collaboration(peers, VECTOR, 1000.0)


def equal(count: int, up: float = 1e7) -> Collaboration:
    return Collaboration(tuple(PeerLinks(f"p{at}", up, up, 10.0) for at in range(count)), VECTOR, 1000.0)


def carried_out(given: Collaboration, plan: GroupPlan) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Average one number for each piece and peer as the plan says: (what each peer gets, bytes up, bytes down)."""
    laid = layout(plan)
    sizes = np.diff(laid.bounds) * VECTOR
    count = len(given.peers)
    values = np.random.default_rng(0).normal(size=(count, len(sizes)))
    got = np.full((count, len(sizes)), np.nan)
    up, down = np.zeros(count), np.zeros(count)

    def send(sender: int, receiver: int, n_bytes: float) -> None:
        if sender != receiver:
            up[sender] += n_bytes
            down[receiver] += n_bytes

    for piece, n_bytes in enumerate(sizes):
        top, total = laid.tops[piece], 0.0
        for number, group in enumerate(plan.groups):
            owner = laid.owners[number, piece]
            assert owner in group
            for place in group:
                if plan.computes[place]:
                    total += values[place, piece]
                    send(place, owner, n_bytes)
            send(owner, top, n_bytes)
        for number, group in enumerate(plan.groups):
            owner = laid.owners[number, piece]
            send(top, owner, n_bytes)
            for place in group:
                if plan.computes[place] or given.peers[place].keeps_state:
                    got[place, piece] = total / sum(plan.computes)
                    send(owner, place, n_bytes)
    means = values[list(plan.computes)].mean(axis=0)
    needing = [at for at, peer in enumerate(given.peers) if plan.computes[at] or peer.keeps_state]
    np.testing.assert_allclose(got[needing], np.broadcast_to(means, (len(needing), len(sizes))), rtol=1e-9, atol=1e-12)
    return got, up, down


@pytest.mark.parametrize("seed", range(20))
@pytest.mark.parametrize("number", [1, 2, 3, 6])
def test_everyone_gets_the_mean_and_no_link_carries_more_than_it_can(seed: int, number: int) -> None:
    given = drawn(seed, 30)
    plan = group_plan(given, dealt(given, number))
    assert plan.averages_per_s > 0
    for group in plan.groups:
        assert float(plan.shares[list(group)].sum()) == pytest.approx(1.0)
    assert float(plan.tops.sum()) == pytest.approx(1.0)
    _, up, down = carried_out(given, plan)
    takes_s = 1.0 / plan.averages_per_s
    for at, peer in enumerate(given.peers):
        assert up[at] <= peer.up_bytes_per_s * takes_s * (1 + 1e-6)
        assert down[at] <= peer.down_bytes_per_s * takes_s * (1 + 1e-6)


@pytest.mark.parametrize("seed", range(20))
def test_one_group_is_the_linear_program(seed: int) -> None:
    given = drawn(seed, 12)
    computing = [at for at, peer in enumerate(given.peers) if peer.samples_per_s > 0]
    wanted = shares_for(given, computing).averages_per_s
    assert group_plan(given, [range(12)]).averages_per_s == pytest.approx(wanted, rel=1e-5)


@pytest.mark.parametrize("number", [2, 4, 10])
def test_groups_of_equal_peers_average_as_fast_as_all_of_them_together(number: int) -> None:
    given = equal(100)
    alone = group_plan(given, [range(100)]).averages_per_s
    assert group_plan(given, dealt(given, number)).averages_per_s == pytest.approx(alone, rel=1e-6)
    assert alone == pytest.approx(1e7 / (2 * 0.99 * VECTOR), rel=1e-6)


def test_a_fast_group_adds_up_more_than_slow_ones() -> None:
    peers = [PeerLinks(f"p{at}", 1e8 if at < 4 else 4e6, 1e8 if at < 4 else 4e6, 10.0) for at in range(16)]
    plan = group_plan(
        Collaboration(tuple(peers), VECTOR, 1000.0), [range(start, start + 4) for start in range(0, 16, 4)]
    )
    assert float(plan.tops[:4].sum()) > 0.5


def test_who_only_opens_connections_outwards_owns_nothing() -> None:
    given, hidden = equal(64), range(16, 64)
    plan = best_group_plan(given, hidden)
    assert plan.averages_per_s > 0
    assert not plan.shares[list(hidden)].any()
    assert {sum(place < 16 for place in group) for group in plan.groups} == {16 // len(plan.groups)}


def test_a_peer_whose_link_would_hold_all_up_does_not_compute() -> None:
    peers = [PeerLinks(f"p{at}", 1e7, 1e7, 10.0) for at in range(40)]
    given = Collaboration((*peers, PeerLinks("modem", 1e3, 1e3, 1.0)), VECTOR, 100.0)
    plan = best_group_plan(given)
    assert plan.computes == (*[True] * 40, False)
    assert plan.steps_per_s > 1.0


def test_pair_limits_and_one_peer_by_itself_are_refused() -> None:
    given = Collaboration(equal(4).peers, VECTOR, 1000.0, {("p0", "p1"): 1.0})
    with pytest.raises(InvalidInput, match="pair limits"):
        group_plan(given, [range(4)])
    with pytest.raises(InvalidInput, match="by itself"):
        group_plan(equal(1), [range(1)])


def test_links_that_carry_nothing_average_nothing() -> None:
    plan = group_plan(equal(4, up=0.0), [[0, 1], [2, 3]])
    assert plan.averages_per_s == plan.steps_per_s == 0.0
    assert not math.isnan(float(plan.shares.sum()))
