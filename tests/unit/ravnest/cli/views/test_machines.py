import io
import json
from pathlib import Path

from rich.console import Console

from cluster_planner import Fleet, Link, Node
from ravnest.cli.views.machines import comments, doctor_document, profile_document, show_doctor, show_profile
from ravnest.profiling.doctor import DoctorReport
from ravnest.profiling.estimates import MeasuredFigure, MeasuredLatency
from ravnest.profiling.findings import Finding
from ravnest.profiling.links import LinksMeasured
from ravnest.profiling.measured_fleet import MeasuredFleet
from ravnest.profiling.profile import Profile
from ravnest.profiling.speed import Speed


def profile() -> Profile:
    nodes = tuple(
        Node(name=name, flops_per_s=2e9, memory_bytes=10**9, up_bytes_per_s=5e6, down_bytes_per_s=1e7)
        for name in ("desk", "laptop")
    )
    fleet = MeasuredFleet(Fleet(nodes, (Link("desk", "laptop", 0.01, 5e6),)))
    speed = Speed(MeasuredFigure(2e9, 0.1), 0.5, 2, 8)
    latencies = {("desk", "laptop"): MeasuredLatency(0.01, 0.002)}
    links = LinksMeasured(latencies, rates={("desk", "laptop"): MeasuredFigure(5e6, 0.0)})
    return Profile(fleet, "a small model", dict.fromkeys(("desk", "laptop"), speed), links, {}, ["busy"], ["attic"])


def shown(show: object, what: object) -> str:
    text = io.StringIO()
    show(what, Console(file=text, width=120))  # type: ignore[operator]
    return text.getvalue()


def test_what_would_fail_stands_before_what_is_only_a_warning() -> None:
    findings = [Finding("warns", "desk", "has a slow clock", "set it"), Finding("fails", "attic", "is gone", "look")]
    report = DoctorReport(findings)
    text = shown(show_doctor, report)
    assert text.index("attic") < text.index("desk")
    assert "1 thing would make a run fail" in text
    document = json.loads(json.dumps(doctor_document(report)))
    assert document["would_fail"] is True
    assert [each["about"] for each in document["findings"]] == ["desk", "attic"]


def test_without_a_failing_finding_nothing_would_fail() -> None:
    assert "nothing would make a run fail" in shown(show_doctor, DoctorReport())


def test_a_profile_shows_each_node_each_pair_its_notes_and_what_is_missing() -> None:
    text = shown(show_profile, profile())
    for words in ("desk", "laptop", "40", "busy", "attic", "a small model"):
        assert words in text
    document = json.loads(json.dumps(profile_document(profile(), Path("nodes.yaml"))))
    assert [node["name"] for node in document["nodes"]] == ["desk", "laptop"]
    assert document["latencies"][0]["between"] == ["desk", "laptop"]
    assert document["transfers"][0]["value"] == 5e6
    assert any("attic" in line for line in comments(profile()))
