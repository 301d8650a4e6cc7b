from typing import Any

import pytest

from ravnest.driver.observe.report import ClusterProgress, EvaluatedEvent, ProgressEvent
from ravnest.page.run_curves import RunCurves


def progress(samples: int) -> ProgressEvent:
    clusters = (ClusterProgress("c0", samples, 8.0, 2.0, 0, 1, 0),)
    return ProgressEvent(1.0, samples, None, clusters)


def losses(curves: RunCurves, name: str = "c0") -> Any:
    found: Any = curves.document([name])["loss"]
    return found[name]


def test_losses_stand_at_the_samples_of_the_fleet():
    curves = RunCurves(["c0", "c1"])
    curves.updated("c0", 1.0, 3.0, 16)
    curves.updated("c1", 2.0, 3.5, 16)
    curves.progressed(progress(100), 3.0)
    curves.updated("c0", 4.0, 2.5, 32)
    curves.updated("c9", 5.0, 2.0, 10_000)  # it came, and counts from where its schedule begins
    assert losses(curves) == [(1, 16, 3), (4, 100, 2.5)]
    assert losses(curves, "c9") == [(5, 100, 2)]
    assert losses(curves, "other") == []


def test_of_a_resumed_run_nothing_is_drawn_twice_and_nothing_is_placed_before_its_samples_are_known():
    curves = RunCurves(["c0", "c1"])
    for at in range(1, 11):
        curves.updated("c0", float(at), 5.0, 10 * at)
        curves.evaluated(EvaluatedEvent(10 * at, 5.0, {}, False), float(at))
    curves.begin_anew()
    curves.updated("c0", 10.5, 4.0, 60)
    assert len(losses(curves)) == 10
    curves.progressed(progress(62), 11.0)
    curves.updated("c0", 12.0, 4.0, 68)
    curves.evaluated(EvaluatedEvent(60, 4.0, {}, False), 12.0)
    assert [samples for _, samples, _ in losses(curves)] == [10, 20, 30, 40, 50, 60, 68]
    held_out: Any = curves.document([])["held_out"]
    assert [(each["samples"], each["loss"]) for each in held_out] == [(10 * at, 5.0) for at in range(1, 6)] + [
        (60, 4.0)
    ]
    assert curves.held_out == held_out[-1]


def test_the_past_comes_with_the_losses_of_all_clusters():
    curves = RunCurves(["c0"])
    record = {"samples": 50, "samples_per_s": 8.0, "losses": {"c0": 3.0, "c1": None, "c2": "junk"}}
    assert curves.past(record, 5.0) == {"c0": 3.0}
    assert curves.past({"samples": None, "losses": {"c0": 1.0}}, 6.0) == {}
    assert curves.past({"samples": 60, "losses": []}, 6.0) == {}
    curves.updated("c0", 7.0, 2.0, 10)
    assert losses(curves) == [(5, 50, 3), (7, 50, 2)]
    assert curves.document([])["samples_per_s"] == [(5, 8)]


@pytest.mark.parametrize("clusters", [1, 250])
def test_curves_stay_short(clusters):
    names = [f"c{number}" for number in range(clusters)]
    curves = RunCurves(names)
    for at in range(3000):
        curves.updated("c0", float(at), 1.0, at)
        curves.progressed(progress(at), float(at))
        curves.round_took(float(at), 2.0)
    found: Any = curves.document(names)
    assert len(found["loss"]["c0"]) <= min(400, 12_000 // clusters)
    assert len(found["samples_per_s"]) <= 400
    assert len(found["round_s"]) <= 400
