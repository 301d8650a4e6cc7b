"""Twenty minutes of a recorded trace at ten times its speed, rehearsed: real processes, imitated machines.

Each node of the trace is an imitated T4, each stage a process of this machine. `ravnest rehearse --scenario` acts the
trace out: the processes of a node that is taken away stand still, so that only its silence tells, and a node that comes
asks to join. Beside the run stands the best plan for the nodes alive at each moment (baseline.py), and what of it is
knowable: a node counts 15 s after it came, and a cluster whose node has gone makes nothing until that is noticed. The
same plan is simulated through the same trace, too. The twenty minutes begin where the trace has so few nodes that this
machine can hold their processes. Two jobs are tried: one whose model needs two nodes at the least, and one whose model
every node holds. Rounds may be four apart (`max_lag`), so that nobody waits for a node that is silent.
"""

import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from typing import Any

from cluster_planner import (
    PROCESS_BYTES,
    Fleet,
    ModelCosts,
    Node,
    Plan,
    RegionLink,
    SpanCosts,
    Workload,
    make_plan,
    save_plan,
)
from experiments.churn.baseline import Rates, best_rates, knowable_rates, samples_of
from experiments.churn.fleets import HERE, alike_planner
from experiments.harness.report import ROOT, Cell, Claim, Panel, Part, Series, Table
from ravnest.driver.observe.metrics_file import read_metrics
from ravnest.job.config import load_job
from ravnest.job.materials import capture_job, load_data
from ravnest.planning.workload import workload
from ravnest.simulator import NodeChange, simulate
from ravnest.simulator.scenario import load_scenario

TARGET = 0.90
TRACE, SPEED, FROM_S, SECONDS = "preemptions_g4dn.csv", 10.0, 168.0, 1200.0
"""The file, how many times as fast it is acted out, and from when on and for how long, at that speed: up to 17 nodes
are there at a time, and 2 at the least."""
QUICK_FROM_S, QUICK_S, QUICK_NODES = 1224.0, 75.0, 6
"""Four nodes are there, and two come."""
NOTICED_S = 20.0
WHOLE_FORWARD_S = 0.3
"""What a node takes for the whole model's forward of one micro-batch, and twice that for its backward."""
STARTS_S = 900.0
ENDS_S = 120.0
SPAN_S = 30.0
"""The picture has a point for each of these."""
SITE_BYTES_PER_S, SITE_LATENCY_S = 1e9 / 8, 0.0005
JOB = {
    "model": {"factory": "experiments.churn.wide_layers:stack", "args": {"width": 256}},
    "data": {"factory": "experiments.churn.wide_layers:noise", "args": {"width": 256}},
    "loss": "mse",
    "micro_batch": 4,
    "update_every": 4,
    "average_every": 256,
    "max_lag": 4,
    "evaluate_every": 512,
    "ready_processes": "always",
    "optimizer": {"name": "adamw", "lr": 1e-3},
    "stop": {"minutes": 600},
    "seed": 0,
}


def measure(hold: int, *, quick: bool) -> Part:
    """One rehearsal where at least `hold` nodes hold the model, or with `quick` a minute of it on a few nodes."""
    from_s, seconds, most = (QUICK_FROM_S, QUICK_S, QUICK_NODES) if quick else (FROM_S, SECONDS, None)
    lines = cut_out(HERE / TRACE, SPEED, from_s, seconds, most)
    with tempfile.TemporaryDirectory(prefix="rehearsed-trace") as where:
        folder = Path(where)
        (folder / "trace.csv").write_text("".join(f"{at_ms:.0f},{kind},{node}\n" for at_ms, kind, node in lines))
        trace = {"file": "trace.csv", "speed": SPEED, "noticed_after_s": NOTICED_S}
        (folder / "scenario.yaml").write_text(json.dumps({"trace": trace}))  # which is YAML, too
        scenario = load_scenario(folder / "scenario.yaml")
        plan = _plan(folder, scenario.trace, hold)
        ideal = alike_planner()
        best = best_rates(plan, scenario.trace, seconds, ideal)
        known = knowable_rates(plan, scenario.trace, seconds, ideal, scenario.restart_s)
        virtual = simulate(plan, scenario, seconds=seconds, planner=alike_planner())
        _rehearse(folder, seconds)
        told = read_metrics(folder / "r" / "metrics.jsonl")
        summary = json.loads((folder / "r" / "summary.json").read_text())
    samples, trained_s = int(summary["samples"]), max(seconds, float(summary["seconds"]))  # with its last round
    could, knowable = samples_of(best, trained_s), samples_of(known, trained_s)
    share = samples / could
    simulated = virtual.goodput_per_s * virtual.end_s / samples_of(best, max(seconds, virtual.end_s))
    name = "rehearsed_trace" if hold > 1 else "rehearsed_alone"
    needs = f"{hold} nodes" if hold > 1 else "one node"
    again = sorted(float(str(one["seconds"])) for one in told if one["kind"] == "replaced")
    shares: list[tuple[str, Cell]] = [
        ("rehearsed", f"{share:.1%}"),
        ("simulated", f"{simulated:.1%}"),
        ("knowable", f"{knowable / could:.1%}"),
        ("rehearsed, of the knowable", f"{samples / knowable:.1%}"),
    ]
    rows: list[tuple[str, Cell]] = [
        ("nodes there: mean, fewest, most", _present(best, seconds)),
        ("changes: moments, nodes gone, nodes come", _changed(scenario.trace, seconds)),
        ("best plan at each moment, samples", round(could)),
        ("rehearsed, samples in the anchor at the end", samples),
        ("seconds of training, with the last round", round(trained_s, 1)),
        ("clusters lost", sum(one["kind"] == "lost" for one in told)),
        ("samples lost with them", sum(int(str(one["samples"])) for one in told if one["kind"] == "lost")),
        ("clusters of nodes that came", sum(one["kind"] == "replaced" and bool(one.get("new")) for one in told)),
        ("seconds to train again, median", round(again[len(again) // 2], 1) if again else None),
        ("no cluster left", sum(one["kind"] == "restarted" for one in told)),
        ("rounds", sum(one["kind"] == "round" for one in told)),
    ]
    return Part(
        name=name,
        title=f"A recorded trace, rehearsed: {needs} hold{'' if hold > 1 else 's'} the model",
        claims=[
            Claim(
                name.replace("_", " "),
                f"{seconds / 60:g} minutes of g4dn, {SPEED:g}x, {needs} at the least, rehearsed: samples of the best"
                " plan for the nodes alive at each moment",
                f"at least {TARGET:.0%}",
                f"{share:.1%}",
                None if quick else share >= TARGET,
            )
        ],
        tables=[
            Table("Samples, of those of the best plan at each moment", ("", "share"), shares),
            Table(f"{TRACE} at {SPEED:g} times its speed, from {from_s:g} s on", ("", "value"), rows),
        ],
        panels=[_panel(name.replace("_", " "), best, told, seconds)],
        notes=[" ".join((__doc__ or "").split("\n\n")[1].split())],
    )


def cut_out(path: Path, speed: float, from_s: float, seconds: float, most: int | None) -> list[tuple[float, str, str]]:
    """Return the lines of a recorded trace in a span of time: those who are there at its beginning are added at 0 ms.

    `from_s` and `seconds` are of the time at which the trace is acted out, the lines' milliseconds of the recording.
    `most`: only so many nodes are taken, those that are there first; None: all.
    """
    begins_ms, ends_ms = 1000.0 * speed * from_s, 1000.0 * speed * (from_s + seconds)
    there: dict[str, None] = {}
    later = []
    for line in path.read_text(encoding="utf-8").splitlines():
        at, kind, node = line.split(",")
        if float(at) <= begins_ms:
            there.pop(node, None)
            if kind == "add":
                there[node] = None
        elif float(at) < ends_ms:
            later.append((float(at) - begins_ms, kind, node))
    names = list(dict.fromkeys([*there, *(node for _, _, node in later)]))[:most]
    first = [(0.0, "add", node) for node in there]
    return [line for line in (*first, *later) if line[2] in names]


def _plan(folder: Path, changes: Sequence[NodeChange], hold: int) -> Plan:
    """The planner's plan for the nodes that are there first; the others are its spares."""
    job_file = folder / "job.yaml"
    job_file.write_text(json.dumps(JOB))
    job = load_job(job_file)
    captured = capture_job(job, job_file, load_data(job, job_file))
    work = workload(job)
    names = list(dict.fromkeys(change.node for change in changes))
    fleet = _fleet(names, captured.costs, work, hold)
    there = [change.node for change in changes if change.kind == "back" and change.at_s <= 0.0]
    few = Fleet(tuple(node for node in fleet.nodes if node.name in there), fleet.links, fleet.regions)
    first = make_plan(few, captured.costs, work, job=job.model_dump(mode="json"), job_file=str(job_file))
    plan = alike_planner()(replace(first, fleet=fleet, spares=()), there)
    save_plan(plan, folder / "plan.yaml")
    return plan


def _fleet(names: Sequence[str], costs: ModelCosts, work: Workload, hold: int) -> Fleet:
    """Nodes that are all alike, of whose memory `hold` hold the model, and one less does not."""
    spans = SpanCosts(costs, work)
    units = len(costs.units)
    alone = spans.stage_memory_bytes(0, units, (0, 1), work.largest_window) - PROCESS_BYTES
    memory = PROCESS_BYTES + (2 * alone if hold == 1 else alone * 9 // (10 * (hold - 1)))
    flops = sum(unit.flops for unit in costs.units) * work.micro_batch / WHOLE_FORWARD_S
    nodes = tuple(
        Node(
            name=name,
            flops_per_s=flops,
            memory_bytes=memory,
            up_bytes_per_s=SITE_BYTES_PER_S,
            down_bytes_per_s=SITE_BYTES_PER_S,
            region="site",
        )
        for name in names
    )
    return Fleet(nodes, (), (RegionLink("site", "site", SITE_LATENCY_S, SITE_BYTES_PER_S),))


def _rehearse(folder: Path, seconds: float) -> None:
    words = ["rehearse", "plan.yaml", "--minutes", f"{seconds / 60}", "--scenario", "scenario.yaml", "--out", "r"]
    ended = subprocess.run(
        [sys.executable, "-m", "ravnest", *words],
        cwd=folder,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        timeout=seconds + STARTS_S + ENDS_S,
    )
    if ended.returncode:
        raise RuntimeError(f"the rehearsal ended with {ended.returncode}:\n{ended.stderr[-4000:]}")


def _present(best: Rates, seconds: float) -> str:
    ends = [*(at_s for at_s, _, _ in best[1:]), seconds]
    node_s = sum(count * (until_s - at_s) for (at_s, _, count), until_s in zip(best, ends, strict=True))
    counts = [count for _, _, count in best]
    return f"{node_s / seconds:.1f}, {min(counts)}, {max(counts)}"


def _changed(changes: Sequence[NodeChange], seconds: float) -> str:
    later = [change for change in changes if 0.0 < change.at_s < seconds]
    gone = sum(change.kind == "gone" for change in later)
    return f"{len({change.at_s for change in later})}, {gone}, {len(later) - gone}"


def _panel(title: str, best: Rates, told: Sequence[dict[str, Any]], seconds: float) -> Panel:
    """Samples/s of the best plans, and of the rehearsal as its progress was told, by spans of time."""
    ends = [SPAN_S * number for number in range(1, round(seconds / SPAN_S) + 1)]
    made = [(float(one["elapsed_s"]), int(one["samples"])) for one in told if one["kind"] == "progress"]
    counts = [max((samples for at_s, samples in made if at_s <= end_s), default=0) for end_s in (0.0, *ends)]
    rates = [
        (samples_of(_until(best, b), b) - samples_of(_until(best, a), a)) / SPAN_S for a, b in pairwise((0.0, *ends))
    ]
    minutes = [end_s / 60 for end_s in ends]
    return Panel(
        title,
        "minutes",
        "samples/s",
        [
            Series("best plan", minutes, rates),
            Series("rehearsed", minutes, [max(0.0, (b - a) / SPAN_S) for a, b in pairwise(counts)]),
        ],
    )


def _until(rates: Rates, end_s: float) -> Rates:
    return [each for each in rates if each[0] < end_s]
