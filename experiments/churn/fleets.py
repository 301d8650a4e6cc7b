"""Fleets that come and go: rented GPUs by recorded traces, and home machines in sessions made from a seed.

Decides the figures of machines, models and jobs. The same seed gives the same sessions and machines.
"""

import random
from collections.abc import Callable, Collection, Mapping
from dataclasses import replace
from functools import partial
from pathlib import Path

from cluster_planner import Fleet, ModelCosts, Node, NoFeasiblePlan, Plan, RegionLink, Workload
from experiments.plan_quality.worlds import gpt
from ravnest.recovery import plan_for
from ravnest.simulator import NodeChange
from ravnest.simulator.node_trace import read_trace

HERE = Path(__file__).parent
MBIT = 1e6 / 8
GPUS: Mapping[str, float] = {"p3": 14e12, "g4dn": 4e12}
"""Sustained FLOP/s of a V100 and of a T4."""
RENTED_MBIT_S = 10_000.0
RENTED_LATENCY_S = 0.0005
AVERAGE_EVERY: Mapping[str, int] = {"p3": 2048, "g4dn": 512, "home": 512}
"""Samples between two rounds of averaging: some 50 s of the fleet at its usual size."""
MORE_OFTEN = 4
"""Where nodes stay for minutes instead of hours, the job averages so many times as often: a round of 0.9 billion
parameters takes 1.5 s at 10 Gbit/s."""
ROUNDS_SAVED = 2
"""Every so many of the job's rounds a checkpoint is written: some 100 s, or 25 s where it averages more often. The
state of 0.9 billion parameters, 11 GB with Adam's, is sent over a link of 10 Gbit/s in 9 s. A checkpoint costs the
simulated run nothing."""

Planner = Callable[[Plan, Collection[str]], Plan]


def model() -> ModelCosts:
    """A GPT of 0.9 billion parameters: it needs three GPUs of 16 GB at the least. Few wide layers plan faster."""
    return gpt(layers=8, width=2560)


def home_model() -> ModelCosts:
    """A GPT of 0.1 billion parameters, for machines of 8 GB."""
    return gpt(layers=6, width=1024, context=512)


def work(kind: str, *, often: bool = False) -> Workload:
    """The job: Adam, 16-bit activations, a byte a parameter in averaging; `often`: for nodes that stay for minutes."""
    return Workload(
        micro_batch=8,
        update_every=4,
        max_staleness=1,
        average_every=AVERAGE_EVERY[kind] // (MORE_OFTEN if often else 1),
        max_lag=1,
        optimizer_state_bytes_per_parameter_byte=2.0,
        process_bytes=4 * 10**8,
        averaged_bytes_per_parameter_byte=0.25,
        activation_wire_ratio=0.5,
        gradient_wire_ratio=0.5,
    )


def rented(kind: str, *, speed: float, notice_s: float, noticed_after_s: float) -> tuple[NodeChange, ...]:
    """The recorded trace of one kind of machine."""
    path = HERE / f"preemptions_{kind}.csv"
    return read_trace(path, speed=speed, notice_s=notice_s, noticed_after_s=noticed_after_s)


def rented_fleet(kind: str, names: Collection[str], mtbf_s: float | None = None) -> Fleet:
    """Machines of one kind in one data centre."""
    rate = RENTED_MBIT_S * MBIT
    nodes = tuple(
        Node(
            name=name,
            flops_per_s=GPUS[kind],
            memory_bytes=16 * 10**9,
            device="cuda",
            up_bytes_per_s=rate,
            down_bytes_per_s=rate,
            region="site",
            mtbf_s=mtbf_s,
        )
        for name in names
    )
    return Fleet(nodes, (), (RegionLink("site", "site", RENTED_LATENCY_S, rate),))


def sessions(nodes: int, hours: float, mean_h: float, longest_h: float, seed: int) -> tuple[NodeChange, ...]:
    """Home machines come by chance, stay for `mean_h` on average and `longest_h` at the longest, and go unsaid.

    `nodes` of them are there on average, and all of these at the start.
    """
    chance = random.Random(f"churn/{seed}")
    found: list[NodeChange] = []
    at_h, number = 0.0, 0
    while at_h < hours:
        stays_h = longest_h if not number else min(longest_h, chance.expovariate(1.0 / mean_h))
        name = f"home{number}"
        found.append(NodeChange(3600.0 * at_h, name, "back", why="it has come"))
        if at_h + stays_h < hours:
            found.append(NodeChange(3600.0 * (at_h + stays_h), name, "gone", 20.0))
        number += 1
        at_h = 0.0 if number < nodes else at_h + chance.expovariate(nodes / mean_h)
    return tuple(sorted(found, key=lambda each: each.at_s))


def home_fleet(names: Collection[str], seed: int, mtbf_s: float | None = None) -> Fleet:
    """Home machines of unequal speeds and uplinks, in two regions."""
    nodes = []
    for index, name in enumerate(names):
        chance = random.Random(f"churn/{seed}/{name}")
        up = chance.choice((20.0, 40.0, 50.0, 100.0)) * MBIT
        nodes.append(
            Node(
                name=name,
                flops_per_s=chance.uniform(2e12, 8e12),
                memory_bytes=chance.choice((8, 12, 16)) * 10**9,
                up_bytes_per_s=up,
                down_bytes_per_s=5 * up,
                region=("east", "west")[index % 2],
                mtbf_s=mtbf_s,
            )
        )
    near, far = 0.010, 0.040
    links = (("east", "east", near), ("east", "west", far), ("west", "west", near))
    return Fleet(tuple(nodes), (), tuple(RegionLink(a, b, delay, 200 * MBIT) for a, b, delay in links))


def alike_planner() -> Planner:
    """A planner for fleets whose nodes are all alike: it plans once for each number of nodes, and renames."""
    return partial(_planned_alike, {})


def _planned_alike(made: dict[int, tuple[Plan, tuple[str, ...]]], plan: Plan, alive: Collection[str]) -> Plan:
    names = tuple(name for name in plan.fleet.names if name in set(alive))
    if not names:
        raise NoFeasiblePlan("nobody is there", key="nodes")
    if len(names) not in made:
        made[len(names)] = plan_for(plan, names), names
    known, there = made[len(names)]
    to = dict(zip(there, names, strict=True))
    others = iter(name for name in plan.fleet.names if name not in to.values())
    to |= {name: next(others) for name in known.fleet.names if name not in to}
    clusters = tuple(
        replace(cluster, stages=tuple(replace(stage, node=to[stage.node]) for stage in cluster.stages))
        for cluster in known.clusters
    )
    spares = tuple(replace(spare, node=to[spare.node]) for spare in known.spares)
    return replace(known, clusters=clusters, spares=spares, fleet=plan.fleet)


def remembering_planner() -> Planner:
    """A planner for unequal nodes, which plans once for each set of them."""
    made: dict[frozenset[str], Plan] = {}

    def planned(plan: Plan, alive: Collection[str]) -> Plan:
        nodes = frozenset(alive)
        if nodes not in made:
            made[nodes] = plan_for(plan, nodes)
        return made[nodes]

    return planned
