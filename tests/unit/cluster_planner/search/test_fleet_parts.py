from collections.abc import Callable

from cluster_planner.inputs.fleet import Fleet, Node
from cluster_planner.inputs.links import Link, RegionLink
from cluster_planner.search.fleet_parts import MOST_REGIONS, above_rates, as_fleet, core_of, likely_parts, parts_of


def test_parts_are_regions_and_the_fastest_nodes(make_node: Callable[..., Node]) -> None:
    speeds, rates = (8, 7, 6, 5, 4, 3, 2, 1), (1, 2, 3, 4, 5, 6, 7, 8)
    nodes = tuple(
        make_node(f"n{i}", region="x" if i < 3 else "y", flops_per_s=speed * 1e9, up_bytes_per_s=rate * 1e6)
        for i, (speed, rate) in enumerate(zip(speeds, rates, strict=True))
    )
    found = dict(parts_of(Fleet(nodes), tuple(range(8))))
    assert found == {
        "x alone": (0, 1, 2),
        "y alone": (3, 4, 5, 6, 7),
        "without n7, the slowest by speed": (0, 1, 2, 3, 4, 5, 6),
        "without n0, the slowest by links": (1, 2, 3, 4, 5, 6, 7),
        "the fastest 75% by speed": (0, 1, 2, 3, 4, 5),
        "the fastest 50% by speed": (0, 1, 2, 3),
        "the fastest 25% by speed": (0, 1),
        "the fastest 75% by links": (2, 3, 4, 5, 6, 7),
        "the fastest 50% by links": (4, 5, 6, 7),
        "the fastest 25% by links": (6, 7),
    }


def test_only_the_nodes_that_are_asked_for_are_in_parts(make_node: Callable[..., Node]) -> None:
    nodes = tuple(make_node(f"n{i}", region=region) for i, region in enumerate("xxyyzz"))
    found = dict(parts_of(Fleet(nodes), (0, 2, 4)))
    assert found["x alone"] == (0,)
    assert found["without x"] == (2, 4)


def test_of_very_many_regions_none_is_a_part(make_node: Callable[..., Node]) -> None:
    nodes = tuple(make_node(f"n{i}", region=f"r{i}") for i in range(MOST_REGIONS + 1))
    found = parts_of(Fleet(nodes), tuple(range(len(nodes))))
    assert all("fastest" in words or "slowest" in words for words, _ in found)


def test_a_part_is_a_fleet_with_its_own_links_only(make_node: Callable[..., Node]) -> None:
    nodes = tuple(make_node(f"n{i}", region=region) for i, region in enumerate("xxyz"))
    links = (Link("n0", "n1", 0.001, 1e7), Link("n1", "n2", 0.02, 1e6))
    regions = (RegionLink("x", "x", 0.002, 1e7), RegionLink("x", "y", 0.03, 1e6), RegionLink("x", "z", 0.04, 1e6))
    part = as_fleet(Fleet(nodes, links, regions), (0, 1, 3))
    assert part.names == ("n0", "n1", "n3")
    assert part.links == links[:1]
    assert part.regions == (regions[0], regions[2])


def test_parts_of_several_limits_together_are_found_and_the_best_comes_first(make_node: Callable[..., Node]) -> None:
    """Worth here: the sum of speeds while all links are fast and nobody is in region x."""
    speeds, rates, regions = (8, 7, 6, 5, 4, 3, 2, 1) * 2, (1, 9, 9, 9, 9, 9, 9, 1) * 2, "xyyyyyyy" * 2
    nodes = tuple(
        make_node(f"n{i}", region=region, flops_per_s=speed * 1e9, up_bytes_per_s=rate * 1e6, down_bytes_per_s=1e9)
        for i, (speed, rate, region) in enumerate(zip(speeds, rates, regions, strict=True))
    )
    asked = list[tuple[int, ...]]()

    def worth(part: tuple[int, ...]) -> float:
        asked.append(part)
        fits = all(rates[i] > 1 and regions[i] != "x" for i in part)
        return sum(max(speeds[i], 3.5) - 3.5 for i in part) / len(part) * fits

    found = likely_parts(Fleet(nodes), tuple(range(16)), worth, combined=True)
    assert len(set(asked)) == len(asked)
    assert [value for value, _, _ in found] == sorted((value for value, _, _ in found), reverse=True)
    assert found[0][2] == (1, 2, 3, 9, 10, 11)
    alone = likely_parts(Fleet(nodes), tuple(range(16)), worth, combined=False)
    assert {part for _, _, part in alone} == {part for _, part in parts_of(Fleet(nodes), tuple(range(16)))}


def test_a_part_that_limits_name_is_named_in_a_part_of_the_fleet_too(make_node: Callable[..., Node]) -> None:
    """Nodes that are slower than it change nothing."""
    nodes = tuple(
        make_node(f"n{i}", flops_per_s=3e9 * (1 + i), up_bytes_per_s=1e6 * (1 + i % 4), down_bytes_per_s=1e9)
        for i in range(12)
    )

    def named(part: tuple[int, ...]) -> set[tuple[int, ...]]:
        return {one for _, _, one in likely_parts(Fleet(nodes), part, lambda _: 0.0, combined=True)}

    quick = tuple(i for i in range(12) if 3e9 * (1 + i) >= 2**33 and i % 4 > 0)
    assert quick in named(tuple(range(12)))
    assert quick in named(tuple(range(1, 12)))


def test_nodes_above_each_rate_of_links_are_parts_but_not_all_nodes(make_node: Callable[..., Node]) -> None:
    rates = (3e5, 2.5e6, 2.6e6, 2.5e7)
    nodes = tuple(make_node(f"n{i}", up_bytes_per_s=rate, down_bytes_per_s=1e9) for i, rate in enumerate(rates))
    assert list(above_rates(Fleet(nodes), (0, 1, 2, 3))) == [(1, 2, 3), (3,)]
    assert list(above_rates(Fleet(nodes), (1, 2))) == []


def test_the_core_is_who_runs_and_the_fastest_by_speed_and_by_links_near_them(make_node: Callable[..., Node]) -> None:
    speeds, rates = (9, 1, 2, 3, 4, 5, 6), (9, 6, 5, 4, 3, 2, 1)
    nodes = tuple(
        make_node(f"n{i}", region="near" if i < 5 else "far", flops_per_s=speed * 1e9, up_bytes_per_s=rate * 1e6)
        for i, (speed, rate) in enumerate(zip(speeds, rates, strict=True))
    )
    fleet, everyone = Fleet(nodes), tuple(range(7))
    assert core_of(fleet, everyone, {2}, most=1) == (2,)
    assert core_of(fleet, everyone, {2}, most=2) == (0, 2), "both the fastest and the one with the fastest links"
    assert core_of(fleet, everyone, {2}, most=3) == (0, 2, 4), "the next by speed in the region of who runs"
    assert core_of(fleet, everyone, {2}, most=4) == (0, 1, 2, 4), "the next by links"
    assert core_of(fleet, everyone, {2}, most=6) == (0, 1, 2, 3, 4, 6), "then those elsewhere"
    assert core_of(fleet, everyone[1:], {2}, most=9) == (1, 2, 3, 4, 5, 6)
