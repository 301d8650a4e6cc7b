from itertools import pairwise

from hypothesis import given, settings
from hypothesis import strategies as st

from experiments.fidelity import sites as s


@settings(max_examples=60, deadline=None)
@given(st.integers(0, 10**6))
def test_every_site_is_within_the_stated_ranges(seed: int) -> None:
    made = s.sites(seed)
    assert len(made) == len(s.SHAPES) >= 12
    assert {site.clusters for site in made} == {1, 2, 3}
    for site in made:
        assert 2 <= len(site.nodes) <= 8
        for node in site.nodes:
            assert s.LEAST_MBPS <= node.up_mbps <= s.MOST_MBPS
            assert s.LEAST_MBPS <= node.down_mbps <= s.MOST_MBPS
            assert s.LEAST_STEP_S <= node.step_s <= s.MOST_STEP_S
        pairs = {(a, b) for a in range(len(site.nodes)) for b in range(a + 1, len(site.nodes))}
        assert set(site.one_way_ms) == pairs
        assert all(s.LEAST_MS <= ms <= s.MOST_MS for ms in site.one_way_ms.values())


@settings(max_examples=60, deadline=None)
@given(st.integers(0, 10**6))
def test_each_cluster_holds_every_layer_once_and_in_order(seed: int) -> None:
    for site in s.sites(seed):
        assert [node.name for node in site.nodes] == [f"n{index}" for index in range(len(site.nodes))]
        for cluster in range(site.clusters):
            spans = [node.layers for node in site.nodes if node.cluster == cluster]
            assert spans[0][0] == 0
            assert spans[-1][1] == s.LAYERS
            assert all(first < end for first, end in spans)
            assert all(before[1] == after[0] for before, after in pairwise(spans))


def test_a_seed_gives_the_same_sites_and_fewer_are_the_first_ones() -> None:
    assert s.sites(3) == s.sites(3)
    assert s.sites(3, 2) == s.sites(3)[:2]
    assert s.sites(3) != s.sites(4)
    assert len(s.sites(3, 15)) == 15


def test_a_site_says_what_it_is() -> None:
    words = s.sites(0)[1].words
    assert words.startswith("2+2 nodes, up ")
    assert words.endswith(" ms")
