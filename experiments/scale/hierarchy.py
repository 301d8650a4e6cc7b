"""What a ring of rings takes beside one ring: simulated, and by the formulas for more members than can be simulated.

The plan's own rule (`ring_timing.divide`) forms the groups from the links of the fleet, as a run with
`averaging: {hierarchical: true}` does. Each member is a cluster of its own, as in part `rings`. A round over groups is
as long as its busiest member sends or receives, or as a chunk's way through its group, among the owners, and back
(`ring_timing/groups.py`).
"""

from dataclasses import replace

from cluster_planner import Plan, exchange_of
from experiments.harness.report import Claim, Panel, Part, Series, Table
from experiments.scale.fleets import SEGMENT_BYTES, home_plan
from experiments.scale.rings import SEED, SMALL_BYTES, between_s, one_round_s
from ravnest.simulator.fleet import fleet_of_plan
from ring_timing import Groups

ROUNDS = ((100, SMALL_BYTES), (300, SMALL_BYTES), (1000, SMALL_BYTES), (300, SEGMENT_BYTES))
BEYOND = ((3000, SMALL_BYTES), (3000, SEGMENT_BYTES), (10_000, SMALL_BYTES), (10_000, SEGMENT_BYTES))
INT8 = (1 + 4 / 256) / 4
"""Bytes on the wire for each of float32: one of four, and a float32 scale for each 256 numbers."""
QUICK = ((100, SMALL_BYTES),)
ONE = "one ring"
WITHIN = 0.25
FASTER = 2.0

Row = tuple[int, float, str, str, float | None, float | None, float, float, float]
"""Members, MB, form on the wire, sizes of groups; seconds of a round: one ring and a ring of rings as simulated, both
by the formulas; the part of the time between two rounds that the ring of rings takes, by its formula."""


def run(*, quick: bool) -> Part:
    """Rounds of one segment with each number of members."""
    rows = [row_of(*given, simulated=True) for given in (QUICK if quick else ROUNDS)]
    rows += [row_of(*given, simulated=False) for given in (() if quick else BEYOND)]
    rows += [row_of(*BEYOND[-1], simulated=False, wire="int8")] if not quick else []
    grouped = [row for row in rows if row[3] != ONE and row[5] is not None]
    off = max(abs(row[5] / row[7] - 1) for row in grouped if row[5])
    gain = min(row[4] / row[5] for row in grouped if row[4] and row[5] and row[1] * 1e6 == SMALL_BYTES)
    largest = rows[-1]
    return Part(
        name="hierarchy",
        title="Rings of rings",
        claims=[
            Claim(
                "predicted",
                "a round over groups takes what the formula says",
                f"within {WITHIN:.0%}",
                f"at most {off:.1%} off",
                off <= WITHIN,
            ),
            Claim(
                "faster",
                f"one ring's time over that of a ring of rings, vectors of {SMALL_BYTES / 1e6:g} MB, simulated",
                f">= {FASTER:g}×",
                f"{gain:.1f}× at least",
                gain >= FASTER,
            ),
            Claim(
                "shorter than the time between rounds",
                f"the part of the time between two rounds that one over {largest[0]:,} members takes, by the formula, "
                f"vectors of {largest[1]:g} MB as int8",
                "< 1",
                f"{largest[8]:.2f}; one ring {largest[6] / largest[7] * largest[8]:.2f}",
                None if quick else largest[8] < 1,
            ),
        ],
        tables=[
            Table(
                "One round of one segment",
                (
                    "members",
                    "MB",
                    "wire",
                    "groups",
                    "one ring, simulated, s",
                    "ring of rings, simulated, s",
                    "one ring, predicted, s",
                    "ring of rings, predicted, s",
                    "part of the time between rounds",
                ),
                rows,
            )
        ],
        panels=[
            Panel(
                f"One round of {n_bytes / 1e6:g} MB, predicted",
                "members",
                "seconds",
                [
                    Series("one ring", [row[0] for row in chosen], [row[6] for row in chosen]),
                    Series("ring of rings", [row[0] for row in chosen], [row[7] for row in chosen]),
                ],
                log_x=True,
                log_y=True,
            )
            for n_bytes in (SMALL_BYTES, SEGMENT_BYTES)
            if (chosen := [row for row in rows if row[1] * 1e6 == n_bytes and row[2] == "float32"])
        ],
        notes=[
            "Rings of 3,000 and 10,000 members are predicted and not simulated: their rounds have 1.8·10⁷ and 2·10⁸ "
            "messages, whatever their way. Where the narrowest uplink decides (8 MB as float32) a round takes as long "
            "as that uplink, whatever the way around."
        ],
    )


def row_of(members: int, n_bytes: int, *, simulated: bool, wire: str = "float32") -> Row:
    """One ring by itself, and as a ring of rings."""
    flat = home_plan(members, 1, SEED, samples_per_cluster=10**9, segment_bytes=n_bytes)
    ratio = INT8 if wire == "int8" else 1.0
    flat = replace(flat, workload=replace(flat.workload, averaged_bytes_per_parameter_byte=ratio))
    grouped = replace(flat, workload=replace(flat.workload, hierarchical_averaging=True))
    fleet = fleet_of_plan(grouped)
    groups = fleet.rings[0].groups
    sizes = () if groups is None else Groups(members, groups).sizes
    words = f"{len(sizes)} of {min(sizes)} to {max(sizes)}" if sizes else ONE
    flat_s = one_round_s(fleet_of_plan(flat)) if simulated else None
    grouped_s = one_round_s(fleet) if simulated else None
    predicted = predicted_s(flat), predicted_s(grouped)
    return members, n_bytes / 1e6, wire, words, flat_s, grouped_s, *predicted, predicted[1] / between_s(flat)


def predicted_s(plan: Plan) -> float:
    """What the planner says that a round of the only ring takes on links that nothing else uses."""
    (ring,) = plan.rings
    nodes = [plan.cluster(cluster).stages[index].node for cluster, index in ring.members]
    work, elements = plan.workload, plan.costs.units[0].parameter_bytes // 4
    once = exchange_of(
        plan.fleet, nodes, elements, work.averaged_number_bytes, hierarchical=work.hierarchical_averaging
    )
    return max(once.sending_s + max(once.last_hop_s, once.stalls_s), once.way_s)
