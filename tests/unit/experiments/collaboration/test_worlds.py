import pytest

from experiments.collaboration.worlds import MBIT, paper_worlds, random_world


def test_the_worlds_are_what_the_page_says() -> None:
    worlds = paper_worlds()
    assert [len(worlds[name].peers) for name in ("equal servers", "workstations", "hybrid", "servers and NAT")] == [
        8,
        8,
        25,
        10,
    ]
    hidden = worlds["servers and NAT"]
    assert hidden.pair_limit(2, 3) == 0.0
    assert hidden.pair_limit(0, 2) == 100 * MBIT


@pytest.mark.parametrize("seed", range(5))
def test_random_worlds_are_of_their_seed_and_connect_both_ways_or_not_at_all(seed: int) -> None:
    world = random_world(seed)
    assert world == random_world(seed)
    assert all(world.pair_bytes_per_s[other, one] == rate for (one, other), rate in world.pair_bytes_per_s.items())
