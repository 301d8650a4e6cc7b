import math
from itertools import combinations

import pytest

from cluster_planner import region_places
from experiments.scale.fleets import home_plan


def test_regions_lie_near_where_their_latency_is_short() -> None:
    fleet = home_plan(64, 4, 0).fleet
    node_in = {str(node.region): node.name for node in fleet.nodes}
    places = region_places(fleet, sorted(node_in))
    latency = {pair: fleet.link(node_in[pair[0]], node_in[pair[1]]).latency_s for pair in combinations(places, 2)}
    nearest, farthest = min(latency, key=lambda pair: latency[pair]), max(latency, key=lambda pair: latency[pair])
    assert math.dist(*(places[name] for name in nearest)) < math.dist(*(places[name] for name in farthest))
    assert all(-1e-9 <= part <= 1.0 + 1e-9 for place in places.values() for part in place)
    assert len(set(places.values())) == len(places) == 6


def test_one_region_lies_in_the_middle_and_none_nowhere() -> None:
    fleet = home_plan(64, 4, 0).fleet
    assert region_places(fleet, ["region0"]) == {"region0": (0.5, 0.5)}
    assert region_places(fleet, []) == {}
    with pytest.raises(KeyError):
        region_places(fleet, ["nowhere"])
