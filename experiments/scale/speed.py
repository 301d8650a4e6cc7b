"""How many events a minute the simulator handles on one core.

An event is one thing taken from the heap of the virtual clock: the end of a computation, or a message that is in, both
of which a stage's or a ring's machine handles; a message that comes to a downlink or leaves a link that was busy; a
call between the driver and a stage.
"""

import time

from experiments.harness.report import Claim, Part, Table
from experiments.scale.fleets import home_plan
from ravnest.simulator.fleet import fleet_of_plan
from ravnest.simulator.run import VirtualRun

TARGET = 10e6
SEED = 1
NODES, STAGES = 100, 10
REPEATS = 3


def run(*, quick: bool) -> Part:
    """The same run a few times; the best counts, since nothing but other programs makes one slower."""
    plan = home_plan(NODES, STAGES, SEED)
    samples = (64 if quick else 1024) * len(plan.clusters)
    rows, best = [], 0.0
    for title, tuned in (("as a run does it, windows tuned", True), ("windows as planned", False)):
        for _ in range(1 if quick else REPEATS):
            virtual = VirtualRun(fleet_of_plan(plan, tuned=tuned), traced=False)
            wall_s, cpu_s = time.perf_counter(), time.process_time()
            virtual.run(samples)
            wall_s, cpu_s = time.perf_counter() - wall_s, time.process_time() - cpu_s
            events = virtual.clock.events
            rows.append((title, events, 60e-6 * events / wall_s, 60e-6 * events / cpu_s))
            if tuned:
                best = max(best, 60 * events / cpu_s)
    return Part(
        name="speed",
        title="Events a minute on one core",
        claims=[
            Claim(
                "events",
                "the simulator handles 10 million events a minute on one core",
                f"{TARGET / 1e6:g} million",
                f"{best / 1e6:.1f} million a minute of processor time",
                None if quick else best >= TARGET,
            )
        ],
        tables=[
            Table(
                f"{NODES} nodes in clusters of {STAGES}, rounds included",
                ("run", "events", "million a minute", "million a minute of processor time"),
                rows,
            )
        ],
        notes=[" ".join((__doc__ or "").split("\n\n")[1].split())],
    )
