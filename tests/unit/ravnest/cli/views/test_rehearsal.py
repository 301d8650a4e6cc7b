from dataclasses import replace
from io import StringIO
from pathlib import Path

import pytest
from rich.console import Console

from ravnest.cli.views.rehearsal import show_rehearsal, verdict
from ravnest.rehearsal.comparison import ClusterRehearsal, Compared, Rehearsal, StageRehearsal, as_plain
from tests.support.results import finished_run


def stage(name: str, node: str = "desk", late_share: float | None = 0.004) -> StageRehearsal:
    return StageRehearsal(
        stage=name,
        node=node,
        step_s=Compared(0.0507, 0.0512),
        busy=Compared(1.0, 0.97),
        memory_bytes=Compared(2_000_000, 1_900_000),
        waiting={"input": 0.001, "window": 0.02},
        other={"averaging": 0.0, "evaluation": 0.12, "handing over": 0.004},
        mean_staleness=0.98,
        max_staleness=1,
        late_share=late_share,
    )


def cluster(name: str, *stages: StageRehearsal) -> ClusterRehearsal:
    rates = Compared(79.0, 78.2)
    step_s, busy, window = Compared(0.0507, 0.0512), Compared(1.0, 0.97), Compared(5, 9)
    return ClusterRehearsal(name, rates, step_s, f"{name}.s0", busy, 0.5, 1, stages, window)


def rehearsal(
    *clusters: ClusterRehearsal,
    late: tuple[str, ...] = (),
    steady: bool = True,
    speed: float = 10.0,
) -> Rehearsal:
    stages = [stage for cluster in clusters for stage in cluster.stages]
    return Rehearsal(
        speed=speed,
        steady=steady,
        most_late_share=max((stage.late_share for stage in stages if stage.late_share is not None), default=None),
        late_stages=late,
        suggested_speed=6.1 if late else None,
        samples_per_s=Compared(158.0, 156.4),
        averaging_s=Compared(0.135, 0.291),
        rounds=11,
        staleness_bound=1,
        clusters=clusters,
        run=finished_run(Path("runs/first")),
    )


def shown(made: Rehearsal) -> str:
    out = StringIO()
    show_rehearsal(made, Console(file=out, width=80))
    return out.getvalue()


def test_predicted_and_achieved_stand_side_by_side_for_fleet_clusters_and_stages() -> None:
    text = shown(rehearsal(cluster("c0", stage("c0.s0")), cluster("c1", stage("c1.s0"))))
    for figure in ("158 → 156", "79 → 78.2", "50.7 ms → 51.2 ms", "100% → 97%", "135 ms → 291 ms", "2 MB → 1.9 MB"):
        assert figure in text
    assert "10 times the speed; in the plan's time" in " ".join(text.split())
    assert "window 2%" in text
    assert "input 0%" not in text  # nothing worth naming
    assert "evaluation 12%" in text
    assert "handing over 0%" not in text
    legends = " ".join(text.split())
    assert "busy, waited for, other: shares of the stage's time" in legends
    assert "late: by how much this machine took longer" in legends
    assert "kept up: the latest stage took 0.4% more" in " ".join(text.split())


def test_a_single_cluster_has_no_fleet_and_no_averaging() -> None:
    text = shown(rehearsal(cluster("c0", stage("c0.s0")), speed=1.0))
    assert "fleet" not in text
    assert "round of averaging" not in text
    assert "times the speed" not in text


def test_a_machine_too_small_is_said_loudly_with_stages_shares_and_a_speed() -> None:
    late = rehearsal(cluster("c0", stage("c0.s0", late_share=0.31)), late=("c0.s0",))
    (line,) = verdict(late)
    assert line.startswith("NOT FAITHFUL")
    for word in ("c0.s0 on desk 31.0%", "more than 2%", "--speed 6.1"):
        assert word in line
    (line,) = verdict(replace(late, suggested_speed=None))
    assert "ravnest simulate" in line
    assert "--speed" not in line


def test_links_that_this_machine_cannot_imitate_are_told_beside_computing_that_it_can() -> None:
    made = rehearsal(cluster("c0", stage("c0.s0")))
    assert len(verdict(replace(made, links_late_s=0.0005))) == 1
    kept_up, links = verdict(replace(made, links_late_s=0.02))
    assert kept_up.startswith("In computing, this machine kept up")
    assert links.startswith("NOT FAITHFUL")
    assert "20 ms later" in links
    assert "39% of a micro-batch" in links


def test_what_is_not_known_is_said_and_shown_as_a_dash() -> None:
    unknown = rehearsal(cluster("c0", stage("c0.s0", late_share=None)), steady=False)
    short, late = verdict(unknown)
    assert "--minutes" in short
    assert "not known" in late
    assert "–" in shown(unknown)


def test_nothing_is_cut_off_in_80_columns() -> None:
    text = shown(rehearsal(cluster("c10", stage("c10.s11", "the-raspberry-pi-in-the-cellar"))))
    assert "…" not in text
    assert max(map(len, text.splitlines())) <= 80


def test_tensors_are_said_to_be_compared_at_the_window_that_was_used() -> None:
    tuned = cluster("c0", stage("c0.s0"))
    assert "predicted for the largest window that the run tuned itself to (c0 5 → 9)" in " ".join(
        shown(rehearsal(tuned)).split()
    )
    for window in (Compared(5, 5), Compared(5, None)):
        assert "largest window" not in shown(rehearsal(replace(tuned, window=window)))


def test_snapshots_and_merges_are_told_where_the_speed_makes_them_matter() -> None:
    usual = rehearsal(cluster("c0", stage("c0.s0")))
    assert not any("snapshots" in line for line in verdict(usual))
    (line,) = [line for line in verdict(replace(usual, merges_late_share=0.07)) if "snapshots" in line]
    assert line.startswith("NOT FAITHFUL")
    assert "not at speed 10: up to 7% of a stage's time more" in line
    assert any("time less" in line for line in verdict(replace(usual, merges_late_share=-0.03)))


@pytest.mark.parametrize("merges_late_share", [0.0, 0.07, -0.07])
@pytest.mark.parametrize("links_late_s", [None, 0.0005, 0.02])
@pytest.mark.parametrize("late_share", [None, 0.004, 0.31])
def test_text_and_document_agree_on_what_to_believe(
    late_share: float | None, links_late_s: float | None, merges_late_share: float
) -> None:
    late = ("c0.s0",) if late_share == 0.31 else ()
    made = rehearsal(cluster("c0", stage("c0.s0", late_share=late_share)), late=late)
    made = replace(made, links_late_s=links_late_s, merges_late_share=merges_late_share)
    lines, document = verdict(made), as_plain(made)
    assert sum(line.startswith("NOT FAITHFUL") for line in lines) == len(made.unfaithful_in)
    assert document["unfaithful_in"] == list(made.unfaithful_in)
    assert document["faithful"] is (False if made.unfaithful_in else None if late_share is None else True)
    assert any(line.startswith("This machine kept up") for line in lines) == (document["faithful"] is True)
