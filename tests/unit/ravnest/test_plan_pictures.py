from dataclasses import replace
from pathlib import Path

import pytest
from matplotlib.figure import Figure
from matplotlib.image import imread

from cluster_planner import Plan, Spare
from experiments.scale.fleets import home_plan
from ravnest import plan_pictures
from ravnest.formatting import TWICE_FORWARD
from ravnest.plan_pictures import SLOWEST_LINKS, draw_plan, slowest_links


def drawn_share(path: Path) -> float:
    """The share of an image's pixels that are not white."""
    pixels = imread(path)
    return float((pixels[:, :, :3] < 0.99).any(axis=2).mean())


def test_a_plan_is_drawn(plan: Plan, tmp_path: Path) -> None:
    draw_plan(plan, tmp_path / "plan.png")
    assert drawn_share(tmp_path / "plan.png") > 0.3
    assert [path.name for path in tmp_path.iterdir()] == ["plan.png"]


def test_a_plans_picture_says_what_its_figures_count(
    plan: Plan, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    drawn: list[str] = []
    monkeypatch.setattr(
        plan_pictures, "save", lambda figure, path: drawn.extend(text.get_text() for text in figure.axes[0].texts)
    )
    draw_plan(plan, tmp_path / "plan.png")
    assert any("busy 100%" in text for text in drawn)
    for word in ("busy:", "memory:", "ring:"):
        assert any(word in text for text in drawn), word


def test_spares_with_long_names_stand_in_lines_that_fit(
    plan: Plan, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """They stood in the title, of one line, which the picture of few clusters cut off."""
    nodes = tuple(replace(plan.fleet.nodes[0], name=f"us-east-worker-{i:03}") for i in range(60))
    spares = tuple(Spare(node.name, "no cluster gains") for node in nodes)
    many = replace(plan, fleet=replace(plan.fleet, nodes=(*plan.fleet.nodes, *nodes)), spares=(*plan.spares, *spares))
    checked: list[Path] = []

    def check(figure: Figure, path: Path) -> None:
        axes = figure.axes[0]
        told = [line for text in axes.texts for line in text.get_text().split("\n")]
        assert any(line.startswith("spare: ") for line in told)
        assert "spare" not in axes.get_title(loc="left")
        checked.append(path)

    monkeypatch.setattr(plan_pictures, "save", check)
    draw_plan(many, tmp_path / "plan.png")
    assert checked


def test_dollar_signs_of_a_region_are_no_formula(tmp_path: Path) -> None:
    """`$$`, and what is no formula between two of them, were a traceback once plan.yaml had been written."""
    plan = home_plan(32, 4, 0)
    names = {str(node.region): f"{node.region} $$ \\frac" for node in plan.fleet.nodes}
    fleet = replace(
        plan.fleet,
        nodes=tuple(replace(node, region=names[str(node.region)]) for node in plan.fleet.nodes),
        regions=tuple(replace(link, a=names[link.a], b=names[link.b]) for link in plan.fleet.regions),
    )
    draw_plan(replace(plan, fleet=fleet), tmp_path / "plan.png")
    assert drawn_share(tmp_path / "plan.png") > 0.1


@pytest.mark.parametrize("many", [11, 20, 200])
def test_a_large_plan_has_a_picture_of_bounded_size(
    plan: Plan, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, many: int
) -> None:
    drawn: list[str] = []
    sizes: list[tuple[float, float]] = []

    def note(figure: object, path: Path) -> None:
        drawn.extend(text.get_text() for text in figure.axes[0].texts)  # type: ignore[attr-defined]
        sizes.append(tuple(figure.get_size_inches()))  # type: ignore[attr-defined]

    monkeypatch.setattr(plan_pictures, "save", note)
    clusters = tuple(replace(plan.clusters[i % 2], name=f"c{i}") for i in range(many))
    predicted = replace(plan.predicted, clusters=tuple(plan.predicted.clusters[i % 2] for i in range(many)))
    nodes = (*plan.fleet.nodes, *(replace(plan.fleet.nodes[0], name=f"idle{i}", region="far") for i in range(many)))
    large = replace(
        plan,
        clusters=clusters,
        predicted=predicted,
        fleet=replace(plan.fleet, nodes=nodes),
        spares=(*plan.spares, *(Spare(f"idle{i}", "no cluster gains") for i in range(many))),
    )
    draw_plan(large, tmp_path / "plan.png")
    assert sizes == [(15.0, 9.5)]
    assert len(drawn) < 250
    assert any(f"{many} spare" in text for text in drawn)
    assert any("Mbit/s" in text for text in drawn)
    assert any("169 more clusters" in text for text in drawn) == (many == 200)


def test_of_many_clusters_each_region_shows_some_and_regions_have_a_map(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    figures: list[Figure] = []
    monkeypatch.setattr(plan_pictures, "save", lambda figure, path: figures.append(figure))
    plan = home_plan(160, 4, 0)
    draw_plan(plan, tmp_path / "plan.png")
    (axes,) = figures[0].axes
    drawn = [text.get_text() for text in axes.texts]
    regions = sorted({str(node.region) for node in plan.fleet.nodes})
    assert len(regions) == 6
    folded = [text for text in drawn if "more cluster" in text]
    assert [name for text in folded for name in regions if f" of {name}," in text] == regions
    shown = [text for text in drawn if text in {cluster.name for cluster in plan.clusters}]
    assert len(shown) + sum(int(text.split()[1]) for text in folded) == len(plan.clusters) == 40
    named = {text.get_text(): text.get_position() for text in axes.texts if text.get_text() in regions}
    assert sorted(named) == regions, "on the map"
    assert len({(round(x, 3), round(y, 3)) for x, y in named.values()}) == 6
    assert any(text.endswith(" ms") for text in drawn)


def test_the_slowest_links_in_use_come_first_and_are_few(plan: Plan) -> None:
    said = slowest_links(plan)
    assert 0 < len(said) <= SLOWEST_LINKS
    rates = [float(line.split(": ")[1].split()[0].replace(",", "")) for line in said]
    assert rates == sorted(rates)
    assert len(slowest_links(plan, 2)) == 2


def test_a_link_that_is_as_slow_both_ways_is_told_once_and_with_all_digits() -> None:
    plan = home_plan(8, 2, 0)
    nodes = tuple(replace(node, up_bytes_per_s=2.5e9, down_bytes_per_s=2.5e9) for node in plan.fleet.nodes)
    fleet = replace(plan.fleet, nodes=nodes, links=(), regions=())
    said = slowest_links(replace(plan, fleet=fleet), 100)
    pairs = [tuple(line.split(":")[0].replace("↔", "→").split(" → ")) for line in said]
    assert any(" ↔ " in line for line in said)
    assert not {pair[::-1] for pair in pairs} & set(pairs)
    assert all(": 20,000 Mbit/s, " in line for line in said)


@pytest.mark.parametrize("count", [8, 40])
def test_long_names_fit_into_their_boxes(count: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Names of 43 characters lay over each other, and squeezed a large picture to the half of its width."""
    figures: list[Figure] = []
    monkeypatch.setattr(plan_pictures, "save", lambda figure, path: figures.append(figure))
    plan = home_plan(count, 4, 0)
    named = {name: f"ip-10-0-0-{i}.eu-central-1.compute.internal" for i, name in enumerate(plan.fleet.names)}
    clusters = tuple(
        replace(one, stages=tuple(replace(stage, node=named[stage.node]) for stage in one.stages))
        for one in plan.clusters
    )
    fleet = replace(plan.fleet, nodes=tuple(replace(node, name=named[node.name]) for node in plan.fleet.nodes))
    draw_plan(replace(plan, clusters=clusters, fleet=fleet), tmp_path / "plan.png")
    drawn = [text.get_text() for text in figures[0].axes[0].texts]
    assert "ip-10-0-0-3" in drawn
    assert not any(".compute.internal" in text for text in drawn if "waits" not in text)


def test_a_name_without_room_lacks_its_middle(plan: Plan, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    drawn: list[str] = []
    monkeypatch.setattr(
        plan_pictures, "save", lambda figure, path: drawn.extend(text.get_text() for text in figure.axes[0].texts)
    )
    old, new = plan.clusters[0].stages[0].node, "a" * 60 + "bcd"
    first = replace(
        plan.clusters[0], stages=(replace(plan.clusters[0].stages[0], node=new), *plan.clusters[0].stages[1:])
    )
    nodes = tuple(replace(node, name=new) if node.name == old else node for node in plan.fleet.nodes)
    fleet = replace(plan.fleet, nodes=nodes, links=())
    draw_plan(replace(plan, clusters=(first, *plan.clusters[1:]), fleet=fleet), tmp_path / "plan.png")
    (name,) = {text for text in drawn if text.startswith("aaa")}
    assert name.endswith("bcd")
    assert "…" in name
    assert len(name) < 60


def test_a_small_picture_names_the_regions_and_the_slowest_links(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    drawn: list[str] = []
    monkeypatch.setattr(
        plan_pictures, "save", lambda figure, path: drawn.extend(text.get_text() for text in figure.axes[0].texts)
    )
    plan = home_plan(8, 4, 0)
    draw_plan(plan, tmp_path / "plan.png")
    for cluster in plan.clusters:
        for stage in cluster.stages:
            assert any(text.startswith(f"{plan.fleet.node(stage.node).region}\n") for text in drawn)
    assert any("slowest links in use: " in text for text in drawn)


def test_slow_links_are_red_on_the_map_and_regions_with_a_colour_are_drawn(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    figures: list[Figure] = []
    monkeypatch.setattr(plan_pictures, "save", lambda figure, path: figures.append(figure))
    plan = home_plan(160, 4, 0)
    many = {stage.node: f"place {i % 14}" for i, cluster in enumerate(plan.clusters) for stage in cluster.stages}
    fleet = replace(
        plan.fleet, nodes=tuple(replace(node, region=many[node.name]) for node in plan.fleet.nodes), regions=()
    )
    for each in (plan, replace(plan, fleet=fleet)):
        draw_plan(each, tmp_path / "plan.png")
    colors = [line.get_color() for line in figures[0].axes[0].lines]
    assert {"#c0392b", "#999999"} == set(colors)
    drawn = [text.get_text() for text in figures[1].axes[0].texts]
    coloured = {text.split("■ ")[1].split(":")[0] for text in drawn if text.startswith("■ place")}
    told = {text.split(" of ")[1].split(",")[0] for text in drawn if "more cluster" in text}
    assert len(coloured) == 10
    assert told <= coloured


def texts_of(plan: Plan, path: Path, monkeypatch: pytest.MonkeyPatch) -> list[str]:
    drawn: list[str] = []
    with monkeypatch.context() as patched:
        patched.setattr(
            plan_pictures, "save", lambda figure, path: drawn.extend(text.get_text() for text in figure.axes[0].texts)
        )
        draw_plan(plan, path)
    return drawn


def recomputing(plan: Plan) -> Plan:
    """The plan in which the first stage of each cluster recomputes."""
    return replace(
        plan,
        clusters=tuple(
            replace(cluster, stages=(replace(cluster.stages[0], recomputes=True), *cluster.stages[1:]))
            for cluster in plan.clusters
        ),
    )


@pytest.mark.parametrize("large", [False, True])
def test_a_picture_says_which_stages_run_forward_twice(
    plan: Plan, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, large: bool
) -> None:
    given = home_plan(32, 4, 0) if large else plan
    assert not any("twice" in text for text in texts_of(given, tmp_path / "plan.png", monkeypatch))
    drawn = texts_of(recomputing(given), tmp_path / "plan.png", monkeypatch)
    assert sum("\ntwice forward\n" in text for text in drawn) == (0 if large else len(plan.clusters))
    assert any(TWICE_FORWARD in " ".join(text.split()) for text in drawn)


def test_one_cluster_has_no_ring(plan: Plan, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    names = {cluster.name for cluster in plan.clusters[:1]}
    alone = tuple(
        replace(ring, members=tuple(one for one in ring.members if one[0] in names))
        for ring in plan.rings
        if any(one[0] in names for one in ring.members)
    )
    predicted = replace(plan.predicted, clusters=plan.predicted.clusters[:1])
    one = replace(plan, clusters=plan.clusters[:1], rings=alone, predicted=predicted)
    assert any("ring" in text for text in texts_of(plan, tmp_path / "plan.png", monkeypatch))
    drawn = texts_of(one, tmp_path / "plan.png", monkeypatch)
    assert not any("ring" in text or "averaging" in text for text in drawn)
