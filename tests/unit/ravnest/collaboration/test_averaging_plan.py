import math
import random

import pytest

from ravnest.collaboration.averaging_plan import best_plan, paper_bound, plan_for, relaxed_bound, shares_for
from ravnest.collaboration.fixed_ways import fixed_ways
from ravnest.collaboration.links import Collaboration, PeerLinks


def even(count: int, rate: float = 100.0) -> tuple[PeerLinks, ...]:
    return tuple(PeerLinks(f"p{place}", rate, rate, 1000.0) for place in range(count))


def test_equal_peers_make_an_all_reduce_of_equal_shares() -> None:
    plan = shares_for(Collaboration(even(4), 100.0, 1.0), range(4))
    assert plan.shares == pytest.approx([0.25] * 4)
    # Each sends 3/4 of the vector to others and returns its quarter to three: 1.5 vectors over a link of one.
    assert plan.averages_per_s == pytest.approx(1 / 1.5)


def test_one_fast_peer_beside_slow_ones_becomes_their_server() -> None:
    peers = (PeerLinks("fast", 1000.0, 1000.0, 1000.0), *even(4, 100.0))
    plan = shares_for(Collaboration(peers, 100.0, 1.0), range(5))
    assert plan.shares[0] > 0.6
    assert plan.averages_per_s == pytest.approx(1.0)  # the slow ones' links carry one vector each way, and no more


def test_a_helper_that_computes_nothing_aggregates() -> None:
    peers = (*even(3), PeerLinks("helper", 1000.0, 1000.0, 0.0))
    plan = best_plan(Collaboration(peers, 100.0, 3000.0))
    assert plan.computes == (True, True, True, False)
    assert plan.shares[3] > 0.9
    assert plan.averages_per_s == pytest.approx(1.0)


def test_peers_that_cannot_reach_each_other_average_through_one_that_both_reach() -> None:
    peers = (PeerLinks("backbone", 1000.0, 1000.0, 0.0, keeps_state=True), *even(2))
    blocked = {("p0", "p1"): 0.0, ("p1", "p0"): 0.0}
    plan = best_plan(Collaboration(peers, 100.0, 2000.0, blocked))
    assert plan.shares == (1.0, 0.0, 0.0)
    assert plan.averages_per_s == pytest.approx(1.0)


def test_a_peer_whose_link_would_hold_all_up_does_not_compute() -> None:
    peers = (*even(3), PeerLinks("slow", 1.0, 1.0, 10.0))
    plan = best_plan(Collaboration(peers, 100.0, 3000.0))
    assert plan.computes == (True, True, True, False)
    assert plan.steps_per_s > 10 * shares_for(Collaboration(peers, 100.0, 3000.0), range(4)).steps_per_s


def test_one_peer_by_itself_sends_nothing() -> None:
    plan = best_plan(Collaboration(even(1), 100.0, 500.0))
    assert math.isinf(plan.averages_per_s)
    assert plan.steps_per_s == 2.0


def test_peers_of_whom_nobody_reaches_all_the_others_make_a_ring() -> None:
    apart = {(f"p{one}", f"p{other}"): 0.0 for one, other in ((0, 2), (2, 0), (1, 3), (3, 1))}
    given = Collaboration(even(4), 100.0, 1.0, apart)
    assert shares_for(given, range(4)).averages_per_s == 0.0
    plan = plan_for(given, range(4))
    assert sorted(plan.ring) == [0, 1, 2, 3]
    assert {abs(one - other) for one, other in zip(plan.ring, [*plan.ring[1:], plan.ring[0]], strict=True)} == {1, 3}
    assert plan.averages_per_s == pytest.approx(4 / 6)
    assert plan.shares == pytest.approx([0.25] * 4)


def test_equal_peers_need_no_ring() -> None:
    assert plan_for(Collaboration(even(4), 100.0, 1.0), range(4)).ring == ()


def test_nobody_who_computes_makes_no_step() -> None:
    assert best_plan(Collaboration((PeerLinks("helper", 1.0, 1.0, 0.0),), 1.0, 1.0)).steps_per_s == 0.0


@pytest.mark.parametrize("seed", range(6))
def test_no_plan_exceeds_its_bounds_or_loses_to_a_fixed_way(seed: int) -> None:
    draw = random.Random(seed)
    volunteers = [
        PeerLinks(f"p{at}", draw.uniform(1, 100), draw.uniform(10, 200), draw.choice((0.0, draw.uniform(1, 50))))
        for at in range(draw.randint(2, 7))
    ]
    peers = (*volunteers, PeerLinks("backbone", 150.0, 150.0, 5.0, keeps_state=True))
    names = [peer.name for peer in peers]
    pairs = {(one, other): draw.uniform(0, 60) for one in names for other in names if draw.random() < 0.2}
    given = Collaboration(peers, 100.0, draw.uniform(1, 500), pairs)
    plan = best_plan(given)
    assert math.fsum(plan.shares) == pytest.approx(1.0)
    assert plan.ring or plan.steps_per_s <= relaxed_bound(given) * (1 + 1e-6)
    everyone = [place for place, peer in enumerate(peers) if peer.samples_per_s]
    of_all = shares_for(given, everyone)
    assert of_all.averages_per_s <= paper_bound(given, everyone) * (1 + 1e-6)
    assert plan.steps_per_s >= of_all.steps_per_s * (1 - 1e-9)
    ways = fixed_ways(given)
    for way in ("one server", "equal parts", "direct"):  # these are plans of shares, too
        assert of_all.averages_per_s >= ways[way] * (1 - 1e-6)
    assert plan_for(given, everyone).averages_per_s >= max(ways.values()) * (1 - 1e-6)
