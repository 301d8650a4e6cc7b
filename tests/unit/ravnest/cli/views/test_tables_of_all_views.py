"""Every view at 80 and at 200 columns, with and without colours, of 64 nodes with long names: nothing is cut, a line is
no wider than the terminal, and no number and no name is broken where it need not be.

A line may be longer where a path or a command stands in it, which is to be copied: a terminal shows it in two."""

import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from functools import cache
from io import StringIO
from itertools import pairwise
from pathlib import Path

import pytest
from rich.cells import cell_len
from rich.console import Console

from cluster_planner import Fleet, Link, Node, Plan, Spare, Step
from experiments.scale.fleets import home_plan
from ravnest.cli.explain import REFERENCE, about, entries_of
from ravnest.cli.explain import shown as explained
from ravnest.cli.views.comparison import show_comparison
from ravnest.cli.views.machines import show_doctor, show_profile
from ravnest.cli.views.members import show_hosts, show_people
from ravnest.cli.views.plan import show_plan
from ravnest.cli.views.plan_explained import show_explanation
from ravnest.cli.views.progress import LiveView, event_line
from ravnest.cli.views.rehearsal import show_rehearsal
from ravnest.cli.views.result import show_evaluation, show_result
from ravnest.cli.views.run_state import show_runs, show_status
from ravnest.cli.views.simulation import show_simulation
from ravnest.cli.views.tables import say
from ravnest.collaboration.people import Person
from ravnest.driver.observe import report
from ravnest.profiling.doctor import DoctorReport
from ravnest.profiling.estimates import MeasuredFigure, MeasuredLatency
from ravnest.profiling.findings import Finding
from ravnest.profiling.links import LinksMeasured
from ravnest.profiling.measured_fleet import MeasuredFleet
from ravnest.profiling.profile import Profile
from ravnest.profiling.speed import Speed
from ravnest.rehearsal.comparison import Compared
from ravnest.results.comparing import ComparedRun, Comparison
from ravnest.results.evaluation import Evaluation
from ravnest.simulator import SimulatedRun, simulate
from tests.support.results import finished_run
from tests.unit.ravnest.cli.views.test_rehearsal import cluster, rehearsal, stage
from tests.unit.ravnest.cli.views.test_result_stages import SHARES
from tests.unit.ravnest.cli.views.test_run_state import KILLED

HEIGHT = 30
NAMED = Path("runs/20261123-204643")
FOLDER = Path("runs/20261123-204643-with-the-larger-batch-and-half-of-the-rate")
NODES = tuple(f"n{i:02}-in-the-cellar-of-grandmothers-house" for i in range(64))
HAPPENED = (
    report.ClusterLostEvent("c3", "c3.s1", NODES[13], f"{NODES[13]} is silent", 1_200, ("c0", "c1", "c2")),
    report.CheckpointWrittenEvent(FOLDER / "checkpoints" / "checkpoint-000123", 12_345),
)
HOST = {
    "address": "192.0.2.7:7800",
    "experts": [f"0.{i}" for i in range(16)],
    "most_experts": 64,
    "samples_per_s": 1_234.4,
    "answer_ms": 12.5,
    "updates": 987_654,
}
UNIT = "transformer.encoder.layers.11.feed_forward.output"
STAGES = tuple(f"c{i // 4}.s{i % 4}" for i in range(64))


@cache
def large_plan() -> Plan:
    """64 nodes in 16 clusters, and a spare."""
    plan = home_plan(65, 4, 0)
    names = {node.name: f"{NODES[i] if i < 64 else 'spare-one'}" for i, node in enumerate(plan.fleet.nodes)}
    nodes = tuple(replace(node, name=names[node.name]) for node in plan.fleet.nodes)
    clusters = tuple(
        replace(each, stages=tuple(replace(stage, node=names[stage.node]) for stage in each.stages))
        for each in plan.clusters
    )
    predicted = replace(plan.predicted, bottleneck=f"c3: {NODES[12]}'s uplink: 61.7 ms per micro-batch")
    spares = (Spare("spare-one", "no cluster is faster with it than without it, wherever it stands"),)
    fleet = replace(plan.fleet, nodes=nodes)
    return replace(plan, fleet=fleet, clusters=clusters, predicted=predicted, spares=spares)


@cache
def small_plan() -> Plan:
    """Eight of the nodes in two clusters, whose stages are all shown."""
    plan = home_plan(8, 4, 0)
    names = {node.name: NODES[i] for i, node in enumerate(plan.fleet.nodes)}
    fleet = replace(plan.fleet, nodes=tuple(replace(node, name=names[node.name]) for node in plan.fleet.nodes))
    clusters = tuple(
        replace(each, stages=tuple(replace(stage, node=names[stage.node]) for stage in each.stages))
        for each in plan.clusters
    )
    units = tuple(replace(unit, name=f"{UNIT}.{unit.name}") for unit in plan.costs.units)
    return replace(plan, fleet=fleet, clusters=clusters, costs=replace(plan.costs, units=units))


def progress(clusters: int) -> report.ProgressEvent:
    each = tuple(
        report.ClusterProgress(f"c{i}", 1_234_567 + i, 10_482.5, 2.0123, 3, 38_580, 12_345) for i in range(clusters)
    )
    return report.ProgressEvent(40_000.0, sum(one.samples for one in each), 50_000_000, each)


def live(clusters: int) -> Callable[[Console], None]:
    def show(console: Console) -> None:
        view = LiveView(console)
        for event in (
            report.PhaseEvent("training", "until 50,000,000 samples, with an evaluation after each 500,000 of them"),
            progress(clusters),
            report.RoundCommittedEvent(12_345, 9_000_000),
            *HAPPENED,
        ):
            view.on(event)
        console.print(view.render())

    return show


def logged(console: Console) -> None:
    for event in HAPPENED:
        say(console, f"1 h 02 min · {event_line(event)}")


def figures() -> tuple[report.StageFigures, ...]:
    memory = report.StageMemory(1_430_000, 1_370_000, {}, 6)
    return tuple(
        report.StageFigures(name, node, SHARES, SHARES, memory) for name, node in zip(STAGES, NODES, strict=True)
    )


def profile() -> Profile:
    nodes = tuple(
        Node(name=name, flops_per_s=2e11, memory_bytes=10**10, up_bytes_per_s=5e6, down_bytes_per_s=1e7)
        for name in NODES
    )
    pairs = list(pairwise(NODES))
    fleet = MeasuredFleet(Fleet(nodes, tuple(Link(a, b, 0.01, 5e6) for a, b in pairs)))
    latencies = {pair: MeasuredLatency(0.0123, 0.0021) for pair in pairs}
    links = LinksMeasured(latencies, rates=dict.fromkeys(pairs, MeasuredFigure(5e6, 0.0)))
    speeds = dict.fromkeys(NODES, Speed(MeasuredFigure(2e11, 0.1), 0.5, 2, 8))
    notes = [f"{NODES[7]} was busy with other things while it was measured: its speed may be higher"]
    return Profile(fleet, "a small transformer", speeds, links, {}, notes, [f"the rate from {NODES[0]} to {NODES[9]}"])


def doctor() -> DoctorReport:
    return DoctorReport(
        [
            Finding(
                "fails", NODES[3], "has torch 2.1.0, and this machine 2.9.1", "install the same version of torch there"
            )
        ]
    )


def compared() -> Comparison:
    runs = tuple(
        ComparedRun(FOLDER.with_name(f"{FOLDER.name}-{i}"), "finished", 1_234_567, 36_000.0, (), ((800, 3.3),))
        for i in range(3)
    )
    settings = {
        "job.optimizer.schedule.warmup_updates": (100, 2_000, None),
        "job.model.factory": ("model:a_transformer_of_twelve_layers",) * 2 + ("model:other",),
    }
    return Comparison(runs, settings, ((800, (3.3, 3.4, None)), (1_234_567, (2.1, 2.0123, 2.3))))


def rehearsed(console: Console) -> None:
    stages = tuple(
        replace(stage(name, node), busy=Compared(1.0, 0.97)) for name, node in zip(STAGES, NODES, strict=True)
    )
    groups = [cluster(f"c{i}", *stages[4 * i : 4 * i + 4]) for i in range(16)]
    show_rehearsal(rehearsal(*groups, late=STAGES[:3]), console)


@cache
def simulation() -> SimulatedRun:
    return simulate(small_plan(), samples=2_000)


def simulated(console: Console) -> None:
    show_simulation(simulation(), small_plan(), console, "as many as were asked for", [f"the stall of {NODES[60]}"])


def an_explained_plan(console: Console) -> None:
    steps = [Step("clusters", f"2 clusters, of {NODES[0]} and {NODES[1]}", 100.0, 12.5)]
    show_explanation(small_plan(), steps, console)


@dataclass(frozen=True)
class View:
    """One view, what stands in it whole at any width, and what does where there is room."""

    show: Callable[[Console], None]
    whole: tuple[str, ...]
    where_wide: tuple[str, ...] = ()
    coloured: bool = False
    soft_wrap: bool = False
    """Whether its command breaks no line, so that paths can be copied."""


RUN = replace(
    KILLED, path=FOLDER, state="running", is_rehearsal=False, phase="training", progress=progress(16), silent_s=1.0
)
VIEWS = {
    "plan, summed up": View(
        lambda console: show_plan(large_plan(), console),
        ("65 nodes", "samples/s", "--all prints each stage and each ring."),
        (NODES[12],),
    ),
    "plan, all of it": View(
        lambda console: show_plan(large_plan(), console, everything=True),
        ("compute", "memory", "16 GB"),
        (NODES[0], NODES[63]),
        coloured=True,
    ),
    "plan, small": View(
        lambda console: show_plan(small_plan(), console), ("compute", "memory", "16 GB"), NODES[:8], coloured=True
    ),
    "plan --explain": View(an_explained_plan, ("worth gained", "12.5")),
    "live": View(live(3), ("c2", "10,482", "38,580", "1,234,567", "≤ 3"), (NODES[13],), soft_wrap=True),
    "live, of many clusters": View(live(250), ("more", "round 12345"), soft_wrap=True),
    "result": View(
        lambda console: show_result(
            replace(finished_run(FOLDER), stages=figures(), stopped_early=True), Path("plan.yaml"), console
        ),
        ("1.37 MB (96% of plan)", "bigram model 2.32", str(FOLDER / "weights.safetensors")),
        (NODES[0], NODES[63], "window 15%, staleness 5%"),
        soft_wrap=True,
    ),
    "runs": View(
        lambda console: show_runs([RUN, replace(KILLED, path=FOLDER)], console),
        ("running", "killed (rehearsal)", "1 s ago"),
        (str(FOLDER),),
        coloured=True,
    ),
    "runs, as they are named": View(
        lambda console: show_runs(
            [
                replace(RUN, path=Path("runs/20261123-204643"), silent_s=125.0),
                replace(KILLED, path=Path("runs/20261123-212701"), state="finished", held_out_loss=2.6),
            ],
            console,
        ),
        ("runs/20261123-204643", "finished (rehearsal)", "19,753,192", "2 min 05 s ago"),
    ),
    "status": View(
        lambda console: show_status(RUN, console),
        ("1,234,567", "its process lives", str(FOLDER / "checkpoints" / "checkpoint-000002")),
        soft_wrap=True,
    ),
    "compare": View(
        lambda console: show_comparison(compared(), console), ("finished", "1,234,567", "2.012"), (str(FOLDER) + "-2",)
    ),
    "compare, runs as they are named": View(
        lambda console: show_comparison(
            replace(compared(), runs=tuple(replace(run, path=NAMED) for run in compared().runs)), console
        ),
        (f"A  {NAMED}", f"B  {NAMED}", "1,234,567"),
    ),
    "rehearse": View(
        rehearsed, ("79 → 78.2", "50.7 ms → 51.2 ms", "2 MB → 1.9 MB", "NOT FAITHFUL:"), (NODES[63],), True, True
    ),
    "simulate": View(simulated, ("samples/s", "c0.s0", "as many as were asked for"), (NODES[7],), soft_wrap=True),
    "evaluate": View(
        lambda console: show_evaluation(
            Evaluation(
                FOLDER,
                FOLDER / "weights.safetensors",
                "held_out",
                2_000,
                2.0123,
                {"accuracy": 0.51},
                {},
                125.0,
                9_000,
                True,
            ),
            console,
        ),
        ("2,000 of 9,000", "2.012", "Stopped early: the figures are"),
        soft_wrap=True,
    ),
    "profile": View(
        lambda console: show_profile(profile(), console), ("200 ±5%", "12.3", "missing"), (NODES[63],), True
    ),
    "doctor": View(lambda console: show_doctor(doctor(), console), ("fails", "1 thing would"), (NODES[3],), True),
    "collaborate people": View(
        lambda console: show_people([Person("ab" * 32, name, 1_234_567, 12_345, 17, 3) for name in NODES], console),
        ("1,234,567", "12,345", "ab" * 8),
        (NODES[63],),
    ),
    "experts show": View(
        lambda console: show_hosts([HOST | {"host": f"{name}-{'ab' * 8}"} for name in NODES], console),
        ("16 of 64", "1,234", "12.5 ms", "987,654"),
        (NODES[63], "192.0.2.7:7800"),
    ),
    "logs": View(logged, ("1 h 02 min · c3 has left the run", "checkpoint-000123"), soft_wrap=True),
    "explain": View(
        lambda console: console.print(
            "\n".join(explained(each) for each in about("averaging", list(entries_of(REFERENCE.read_text())))),
            markup=False,
            highlight=False,
            soft_wrap=True,
        ),
        ("averaging",),
    ),
}
ESCAPE = re.compile(r"\x1b\[[0-9;?]*[A-Za-z]")
COLOUR = re.compile(r"\x1b\[(?:[0-9]+;)*(?:3[0-7]|9[0-7]|38;|4[0-7])")
BAR = re.compile(r"[ ╺╸━]+")
"""The rest of a bar has another colour, or is not drawn where there are no colours."""
CUT = re.compile(r"\S…")
COPIED = re.compile(r"\S*/\S{12,}|ravnest ")


def drawn(view: View, width: int) -> str:
    out = StringIO()
    console = Console(file=out, width=width, height=HEIGHT, force_terminal=True, soft_wrap=view.soft_wrap)
    view.show(console)
    return out.getvalue()


@pytest.fixture(params=VIEWS, ids=lambda name: name.replace(" ", "_"))
def view(request: pytest.FixtureRequest) -> Iterator[View]:
    return VIEWS[request.param]


@pytest.mark.parametrize("width", [80, 200])
def test_nothing_is_cut_and_no_line_is_wider_than_the_terminal(
    view: View, width: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TERM", "xterm-256color")
    monkeypatch.delenv("NO_COLOR", raising=False)
    coloured = drawn(view, width)
    monkeypatch.setenv("NO_COLOR", "1")
    plain = drawn(view, width)
    text = ESCAPE.sub("", plain)
    assert [line for line in text.splitlines() if CUT.search(line)] == []
    assert [line for line in text.splitlines() if cell_len(line) > width and not COPIED.search(line)] == []
    for words in (*view.whole, *(view.where_wide if width > 100 else ())):
        assert words in text
    assert not COLOUR.search(plain)
    assert bool(COLOUR.search(coloured)) or not view.coloured
    assert BAR.sub("", ESCAPE.sub("", coloured)) == BAR.sub("", text)


def test_the_live_view_keeps_to_the_screen() -> None:
    for clusters in (3, 250):
        out = StringIO()
        console = Console(file=out, width=80, height=HEIGHT, force_terminal=True, soft_wrap=True)
        live(clusters)(console)
        rows = [line for line in ESCAPE.sub("", out.getvalue()).splitlines() if re.match(r"(c\d|\d+ more)", line)]
        assert len([line for line in rows if "≤" in line]) == min(clusters, HEIGHT - 6)
