from dataclasses import replace

from cluster_planner import Fleet, Link, Plan, RegionLink, assumed_links, capped_links
from ravnest.cli.views.plan import assumption, beyond_nodes, link_notes


def with_links(plan: Plan, *links: Link, **changes: object) -> Plan:
    fleet = Fleet(plan.fleet.nodes, links)
    return replace(plan, fleet=replace(fleet, **changes))  # type: ignore[arg-type]


def all_known(plan: Plan, *links: Link) -> Plan:
    nodes = tuple(replace(node, region="home") for node in plan.fleet.nodes)
    return with_links(plan, *links, nodes=nodes, regions=(RegionLink("home", "home", 0.001, 5e6),))


def test_without_links_and_regions_all_pairs_that_talk_are_assumed(plan: Plan) -> None:
    bare = with_links(plan)
    assert sorted(assumed_links(bare)) == [
        ("desk", "laptop"),
        ("desk", "tower"),
        ("laptop", "tablet"),
        ("laptop", "tower"),
        ("tablet", "tower"),
    ]
    (said,) = link_notes(bare)
    assert said.startswith(
        "assumed: nothing is known of any link, for neither links nor regions are given: desk and laptop (and 4 more "
        "pairs): 50 ms one way (5 ms within a region)"
    )


def test_nodes_of_one_region_are_assumed_near(plan: Plan) -> None:
    nodes = tuple(replace(node, region="home") for node in plan.fleet.nodes)
    assert ": 5 ms one way, as within a region, and no limit but" in str(assumption(with_links(plan, nodes=nodes)))


def test_of_some_links_the_others_are_named(plan: Plan) -> None:
    some = with_links(plan, Link("desk", "laptop", 0.01, 1e6), Link("tablet", "tower", 0.01, 1e6))
    assert str(assumption(some)).startswith(
        "assumed: nothing is known of the link between desk and tower (and 2 more pairs): 50 ms"
    )
    assert link_notes(all_known(plan)) == []


def test_rates_beyond_what_the_nodes_carry_are_told_once(plan: Plan) -> None:
    fast = Link("desk", "laptop", 0.001, 117.5e6)  # of nodes with 40 Mbit/s
    assert link_notes(all_known(plan, replace(fast, bytes_per_s=5.2e6))) == []
    one = all_known(plan, fast)
    assert capped_links(one) == [("desk", "laptop")]
    assert str(beyond_nodes(one)).startswith(
        "note: mbps is above what the nodes' up_mbps and down_mbps carry for desk and laptop: of desk – laptop, 40 of "
        "940 count."
    )
    two = all_known(plan, fast, replace(fast, b="tower"))
    assert "for desk and laptop (and 1 more pair): of" in str(beyond_nodes(two))


def test_a_rate_that_one_direction_reaches_and_a_link_within_a_host_are_not_capped(plan: Plan) -> None:
    one = all_known(plan, Link("desk", "laptop", 0.001, 2e7))
    nodes = tuple(replace(n, up_bytes_per_s=2e7) if n.name == "desk" else n for n in one.fleet.nodes)
    nodes = tuple(replace(n, down_bytes_per_s=2e7) if n.name == "laptop" else n for n in nodes)
    assert capped_links(replace(one, fleet=replace(one.fleet, nodes=nodes))) == []
    hosted = tuple(replace(n, host="attic") if n.name in ("desk", "laptop") else n for n in one.fleet.nodes)
    assert capped_links(replace(one, fleet=replace(one.fleet, nodes=hosted))) == []
