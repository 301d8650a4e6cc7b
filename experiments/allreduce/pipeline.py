"""A running pipeline, with averaging continually in flight beside it and without: what does averaging cost it?

Real stage processes with paced computing (ravnest/stage/compute_tasks.py), so that two cores suffice; rings and
pipeline share the stages' uplinks. One run, in which the driver opens rounds for some seconds and opens none for some,
in turns.
"""

from contextlib import ExitStack

from experiments.allreduce import pipeline_site as site
from experiments.allreduce.crew import Answer, Crew
from experiments.allreduce.lab import Lab
from experiments.allreduce.options import Options
from experiments.harness.report import Cell, Claim, Panel, Part, Series, Table, median, spread

DRIVER = "driver"
WORKER = "experiments.allreduce.pipeline_worker"
LEAST = 0.97
LOADS = {"emulated links": (0.9,), "wanlab": (0.5, 0.9)}
DRIVER_MBPS = 1000.0
SETTLE_S, SECONDS, TURNS = 3.0, 9.0, 3
QUICK_SETTLE_S, QUICK_SECONDS = 1.0, 4.0


def run(options: Options) -> Part:
    """Measure, and judge."""
    places = ["emulated links"]
    if options.wanlab is not None and not options.quick:
        places.append("wanlab")
    found = {(place, load): _measure(options, place, load) for place in places for load in LOADS[place]}
    claims, rows = [], []
    for (place, load), periods in found.items():
        on, off = ([p for p in periods if p["averaging"] is which] for which in (True, False))
        share = median([p["samples_per_s"] for p in on]) / median([p["samples_per_s"] for p in off])
        rows.append(_row(place, load, on, off, share))
        in_flight = min(p["in_flight"] for p in on)
        claims.append(
            Claim(
                f"{place}, load {load:.0%}",
                f"{place}: samples/s of the pipeline while averaging takes {load:.0%} of what it leaves of the "
                "uplinks, over that without",
                f">= {LEAST}",
                f"{share:.3f} (a round in flight {in_flight:.0%} of the time)",
                share >= LEAST,
            )
        )
    rate = site.MBPS * 1e6 / 8
    notes = [
        f"{site.CLUSTERS} clusters of {site.STAGES} stages, {site.MBPS:g} Mbit/s each way, {1e3 * site.ONE_WAY_S:g} "
        "ms one way. A stage computes "
        f"{1e3 * site.MICRO_BATCH_S:g} ms for each micro-batch, by the clock; window {site.window()}. A micro-batch "
        "puts "
        f"{site.BOUNDARY_BYTES / 1e3:g} kB on a stage's uplink "
        f"({site.BOUNDARY_BYTES / site.MICRO_BATCH_S / rate:.0%} of it), a round "
        f"{site.SEGMENT_BYTES / 1e6:.2f} MB.",
        f"Periods of {SECONDS:g} s with and without averaging take turns in one run; those {SETTLE_S:g} s after a "
        "turn are not counted.",
        "Emulated links are those of pairs: ring and pipeline meet on none. In wanlab they share each stage's uplink "
        "and its queue.",
    ]
    if options.wanlab is None or options.quick:
        notes.append(f"Left out: wanlab: {options.why_no_lab or 'not part of --quick'}.")
    columns = [
        "links",
        "load",
        "samples/s averaging",
        "samples/s without",
        "averaging / without",
        "round, s",
        "in flight",
        "uplink of averaging",
    ]
    labels = [f"{place}\n{load:.0%}" for place, load in found]
    panel = Panel(
        "Pipeline beside averaging",
        "links, load of averaging",
        "samples/s",
        [
            Series(
                word,
                labels,
                [median(_rates(periods, which)) for periods in found.values()],
                [min(_rates(periods, which)) for periods in found.values()],
                [max(_rates(periods, which)) for periods in found.values()],
            )
            for word, which in (("without", False), ("while averaging", True))
        ],
    )
    return Part("pipeline", "A pipeline while averaging", claims, [Table("Throughput", columns, rows)], [panel], notes)


def _rates(periods: list[Answer], averaging: bool) -> list[float]:
    return [p["samples_per_s"] for p in periods if p["averaging"] is averaging]


def _row(place: str, load: float, on: list[Answer], off: list[Answer], share: float) -> list[Cell]:
    took = [seconds for period in on for seconds in period["round_s"]]
    uplink = median([p["rounds"] * site.SEGMENT_BYTES / p["seconds"] for p in on]) / (site.MBPS * 1e6 / 8)
    return [
        place,
        f"{load:.0%}",
        spread([p["samples_per_s"] for p in on], ".4g"),
        spread([p["samples_per_s"] for p in off], ".4g"),
        f"{share:.3f}",
        spread(took) if took else None,
        f"{median([p['in_flight'] for p in on]):.0%}",
        f"{uplink:.0%}",
    ]


def _measure(options: Options, place: str, load: float) -> list[Answer]:
    stages = {
        f"c{cluster}.s{index}": f"n{cluster}{index}" for cluster in range(site.CLUSTERS) for index in range(site.STAGES)
    }
    nodes = {**stages, DRIVER: DRIVER}
    turns = 1 if options.quick else TURNS
    settle_s, seconds = (QUICK_SETTLE_S, QUICK_SECONDS) if options.quick else (SETTLE_S, SECONDS)
    periods = [(True, settle_s, 3.0), *[(on, settle_s, seconds) for _ in range(turns) for on in (False, True)]]
    with ExitStack() as stack:
        if place == "wanlab":
            assert options.wanlab is not None
            mbps = dict.fromkeys(stages.values(), (site.MBPS, site.MBPS))
            lab = stack.enter_context(Lab(options.wanlab, {**mbps, DRIVER: (DRIVER_MBPS, DRIVER_MBPS)}, site.ONE_WAY_S))
            hosts = {name: lab.addresses[node] for name, node in nodes.items()}
            crew = stack.enter_context(Crew(list(nodes), module=WORKER, inside=lambda name: lab.inside(nodes[name])))
        else:
            hosts = dict.fromkeys(nodes, "127.0.0.1")
            crew = stack.enter_context(Crew(list(nodes), module=WORKER))
        prepare = {name: {"load": load, "emulated": place != "wanlab", "host": hosts[name]} for name in nodes}
        peers = {name: answer["address"] for name, answer in crew.ask(prepare).items()}
        for name in stages:
            crew.tell(name, {"peers": peers})
        answers = crew.ask({DRIVER: {"peers": peers, "periods": periods}})
    return list(answers[DRIVER]["periods"][1:])
