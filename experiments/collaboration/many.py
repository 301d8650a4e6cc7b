"""Averaging in groups among up to 10,000 peers: how fast the plan is, and how many partners each peer has.

Homes with 5 to 50 Mbit/s up and ten times as much down, of which 30 % only open connections outwards, and one machine
in fifty with a gigabit that computes nothing. The plan (ravnest/collaboration/group_plan.py) is laid out piece by
piece, and what each link carries, who speaks to whom and how long an average takes are counted from that: piece after
piece as fast as the busiest link allows, or one stage after the other, where everybody waits for everybody. Latency and
protocol are left out. One group of all is the best that is known where everyone may speak to everyone.
"""

import random
import time

import numpy as np
from numpy.typing import NDArray

from experiments.collaboration.worlds import MBIT, VECTOR_BYTES
from experiments.harness.report import Claim, Part, Table
from ravnest.collaboration.group_plan import GroupPlan, Layout, best_group_plan, group_plan, layout
from ravnest.collaboration.links import Collaboration, PeerLinks

COUNTS = (100, 1_000, 10_000)
SAMPLES_EACH = 1000.0
"""The batch has so many for each peer: some 50 s of computing, so that it takes nearly all of them."""


def world(count: int, seed: int = 0) -> tuple[Collaboration, frozenset[int]]:
    """The peers, and the places of those that only open connections outwards."""
    draw = random.Random(seed)
    peers, hidden = [], set()
    for at in range(count):
        if at % 50 == 0:
            peers.append(PeerLinks(f"server{at}", 1000 * MBIT, 1000 * MBIT, 0.0))
            continue
        up = 5 * 10 ** draw.uniform(0.0, 1.0)
        peers.append(PeerLinks(f"home{at}", up * MBIT, 10 * up * MBIT, draw.uniform(2, 40)))
        if draw.random() < 0.3:
            hidden.add(at)
    return Collaboration(tuple(peers), VECTOR_BYTES, SAMPLES_EACH * count), frozenset(hidden)


def measure(*, quick: bool) -> Part:
    """One world of each size."""
    found = {count: _planned(count) for count in (COUNTS[:2] if quick else COUNTS)}
    ratios = {count: one["averages"] / one["alone"] for count, one in found.items()}
    largest = max(found)
    return Part(
        name="many",
        title="Groups of many peers",
        claims=[
            Claim(
                "groups",
                "averages per second in groups, of those of one group of all, lowest",
                "at least 0.95",
                f"{min(ratios.values()):.3f}",
                None if quick else min(ratios.values()) >= 0.95,
            ),
            Claim(
                "links",
                "what the busiest link carries in an average, of what it can",
                "at most 1.001",
                f"{max(one['busiest'] for one in found.values()):.6f}",
                None if quick else max(one["busiest"] for one in found.values()) <= 1.001,
            ),
            Claim(
                "partners",
                f"partners of the peer that has most, of {largest:,} peers",
                "at most 5 %",
                f"{found[largest]['partners']:.0f} ({found[largest]['partners'] / largest:.1%})",
                None if quick else found[largest]["partners"] <= 0.05 * largest,
            ),
        ],
        tables=[
            Table(
                "an average",
                (
                    "peers",
                    "of them compute",
                    "groups",
                    "per hour, in groups",
                    "per hour, one group",
                    "seconds, in pieces",
                    "seconds, stage after stage",
                    "most partners",
                    "seconds to plan",
                ),
                [
                    (
                        count,
                        round(one["computing"]),
                        round(one["groups"]),
                        round(3600 * one["averages"], 2),
                        round(3600 * one["alone"], 2),
                        round(1 / one["averages"], 1),
                        round(one["stages"], 1),
                        round(one["partners"]),
                        round(one["planning"], 2),
                    )
                    for count, one in found.items()
                ],
            )
        ],
        notes=[" ".join((__doc__ or "").split("\n\n")[1].split())],
    )


def _planned(count: int) -> dict[str, float]:
    given, hidden = world(count)
    began_s = time.monotonic()
    plan = best_group_plan(given, hidden)
    planning_s = time.monotonic() - began_s
    computing = Collaboration(
        tuple(
            peer if does else PeerLinks(peer.name, peer.up_bytes_per_s, peer.down_bytes_per_s, 0.0)
            for peer, does in zip(given.peers, plan.computes, strict=True)
        ),
        given.vector_bytes,
        given.target_batch,
    )
    alone = group_plan(computing, [range(count)], hidden)
    laid = layout(plan)
    stages = staged(given, plan, laid)
    up, down = (sum(stage[way] for stage in stages) for way in (0, 1))
    links = np.array([(peer.up_bytes_per_s, peer.down_bytes_per_s) for peer in given.peers])
    return {
        "computing": sum(plan.computes),
        "groups": len(plan.groups),
        "averages": plan.averages_per_s,
        "alone": alone.averages_per_s,
        "busiest": float(np.maximum(up / links[:, 0], down / links[:, 1]).max()) * plan.averages_per_s,
        "stages": sum(float(np.maximum(out / links[:, 0], into / links[:, 1]).max()) for out, into in stages),
        "partners": most_partners(plan, laid),
        "planning": planning_s,
    }


Bytes = NDArray[np.float64]


def staged(given: Collaboration, plan: GroupPlan, laid: Layout) -> list[tuple[Bytes, Bytes]]:
    """Bytes that each peer sends and takes, in each of the four stages, counted piece by piece."""
    count, sizes = len(given.peers), np.diff(laid.bounds) * given.vector_bytes
    computes = np.array(plan.computes, dtype=float)
    needs = np.array(
        [does or peer.keeps_state for does, peer in zip(plan.computes, given.peers, strict=True)], dtype=float
    )
    owned, topped, passed = np.zeros(count), np.zeros(count), np.zeros(count)
    computing, needing = np.zeros(count), np.zeros(count)
    for group, owners in zip(plan.groups, laid.owners, strict=True):
        owned += np.bincount(owners, weights=sizes, minlength=count)
        passed += np.bincount(owners, weights=sizes * (owners != laid.tops), minlength=count)
        members = list(group)
        computing[members], needing[members] = computes[members].sum(), needs[members].sum()
    topped += np.bincount(laid.tops, weights=sizes, minlength=count) * (len(plan.groups) - 1)
    whole = given.vector_bytes
    gather = computes * (whole - owned), owned * (computing - computes)
    spread = owned * (needing - needs), needs * (whole - owned)
    return [gather, (passed, topped), (topped, passed), spread]


def most_partners(plan: GroupPlan, laid: Layout) -> int:
    """The most other peers that any peer speaks to."""
    count = len(plan.computes)
    beyond = np.unique(np.concatenate([np.unique(owners * count + laid.tops) for owners in laid.owners]))
    one, other = beyond // count, beyond % count
    pairs = np.unique(np.concatenate([one * count + other, other * count + one])[np.tile(one != other, 2)])
    found = np.bincount(pairs // count, minlength=count)
    for group, owners in zip(plan.groups, laid.owners, strict=True):
        own = np.unique(owners)
        found[list(group)] += len(own)
        found[own] += len(group) - 1 - len(own)
    return int(found.max())
