import pytest

from experiments.plan_quality.homes import DIVISIBLE, FAR_MS, LEAST_LAYER_S, MOST_LAYER_S, NEAR_MS, SHAPES, homes


@pytest.mark.parametrize("shapes", [SHAPES, DIVISIBLE])
def test_each_shape_becomes_a_fleet_of_its_ranges(shapes: tuple[object, ...]) -> None:
    asked = SHAPES if shapes is SHAPES else DIVISIBLE
    made = homes(5, asked)
    assert [len(home.machines) for home in made] == [shape.nodes for shape in asked]
    for home, shape in zip(made, asked, strict=True):
        assert all(LEAST_LAYER_S <= machine.layer_s <= MOST_LAYER_S for machine in home.machines)
        least, most = shape.up_mbps
        assert all(least <= machine.up_mbps <= most for machine in home.machines)
        assert all(machine.up_mbps <= machine.down_mbps for machine in home.machines)
        assert {machine.place for machine in home.machines} == set(range(shape.places))
        assert len(home.one_way_ms) == shape.nodes * (shape.nodes - 1) // 2
        for (a, b), ms in home.one_way_ms.items():
            low, high = NEAR_MS if home.machines[a].place == home.machines[b].place else FAR_MS
            assert 0.8 * low <= ms <= 1.2 * high


def test_the_same_seed_gives_the_same_fleets_and_another_others() -> None:
    assert homes(1) == homes(1)
    assert homes(1) != homes(2)


def test_there_are_as_many_and_as_varied_fleets_as_are_claimed() -> None:
    made = homes(1)
    assert len(made) >= 12
    assert len(DIVISIBLE) >= 4
    assert len({(len(h.machines), h.least_stages, h.update_every, h.max_staleness) for h in made}) >= 10
    assert made[0].words.startswith("2 nodes, up ")
    assert homes(1)[5].words.startswith("3+3 nodes, up ")
