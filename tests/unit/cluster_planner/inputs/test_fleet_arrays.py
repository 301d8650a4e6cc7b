import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from cluster_planner.inputs import fleet as sites
from cluster_planner.inputs.fleet import Fleet, Node
from cluster_planner.inputs.links import Link, RegionLink


@st.composite
def fleets(draw: st.DrawFn) -> Fleet:
    nodes = tuple(
        Node(
            name=f"n{i}",
            flops_per_s=1e9,
            memory_bytes=10**9,
            up_bytes_per_s=5e6,
            down_bytes_per_s=draw(st.sampled_from([1e6, 2e7]))
            if (host := draw(st.sampled_from([None, "h"]))) is None
            else 2e7,
            host=host,
            region=draw(st.sampled_from([None, "x", "y", "z"])),
        )
        for i in range(draw(st.integers(1, 7)))
    )
    pairs = [(a.name, b.name) for i, a in enumerate(nodes) for b in nodes[:i]]
    links = draw(st.lists(st.sampled_from(pairs), unique=True, max_size=4)) if pairs else []
    known = {node.region for node in nodes}
    regions = [RegionLink(a, b, 0.08, 1e7) for a, b in ("xy", "xx", "yz") if {a, b} <= known and draw(st.booleans())]
    return Fleet(nodes, tuple(Link(a, b, 0.02, 3e6) for a, b in links), tuple(regions))


@pytest.mark.parametrize("dense", [True, False])
@settings(max_examples=25, deadline=None)
@given(fleets())
def test_arrays_say_what_the_fleet_says(dense: bool, fleet: Fleet) -> None:
    names = fleet.names
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(sites, "DENSE_NODES", 600 if dense else 0)
        latency, flow = fleet.arrays.between(range(len(names)), range(len(names)))
    for i, a in enumerate(names):
        for j, b in enumerate(names):
            if a == b:
                assert (latency[i, j], flow[i, j]) == (0.0, np.inf)
            else:
                assert latency[i, j] == fleet.link(a, b).latency_s
                assert flow[i, j] == fleet.flow_bytes_per_s(a, b)


def test_nodes_of_one_host_have_one_number(home: Fleet) -> None:
    assert (home.arrays.host == -1).all()
    assert [home.arrays.number_of[name] for name in home.names] == list(range(6))
