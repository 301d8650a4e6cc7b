"""Part `beam`: how long a caller that knows nothing takes to find the best 4 of 100 × 100 experts in the hash table.

The search is the program's own (ravnest/experts/beam_search.py), and so are the keys, the claims and the nodes; the
clock and the network are virtual (virtual.py). Each of 100 hosts has one row of the grid. Each caller is another node,
and reads as callers do at first: it takes the records of the first node that has some (ravnest/experts/directory.py).
"""

import random
import time
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from functools import partial

from experiments.experts.virtual import DEADLINE_S, LIFETIME_S, asked, identity_of, made
from experiments.harness.report import Claim, Panel, Part, Series, Table, median, spread
from ravnest.dht import Record
from ravnest.dht.events import AnswerGet, AnswerStore, Entry, GetAsked, StoreAsked
from ravnest.experts.announcements import claim_entries
from ravnest.experts.beam_search import BeamSearch
from ravnest.experts.grid import Claim as ExpertClaim
from ravnest.experts.grid import Expert, Grid, member_name
from ravnest.simulator.hash_table import VirtualTable

SIDE, BEST, SEARCHES = 100, 4, 50
PUBLISHED_S = {100: 0.317, 10_000: 0.764}
"""Of the published system, by nodes, on other latencies."""


@dataclass(frozen=True)
class Searched:
    """Of the searches in one table: seconds of each, and what part of the true best experts was found."""

    nodes: int
    seconds: Sequence[float]
    found: float
    took_s: float


def search(count: int, side: int, searches: int, *, thorough: bool = False, seed: int = 1) -> Searched:
    """Announce a grid of side × side experts in a table of `count` nodes, and search it from nodes chosen by chance."""
    began_s = time.monotonic()
    table, draw, grid = made(count, joined=False, seed=seed), random.Random(seed), Grid("beam", (side, side))
    members = []
    for row, host in enumerate(draw.sample(range(count), min(side, count))):
        members.append(member_name("host", identity_of(host, seed).public_key))
        _announce(table, host, members[-1], grid, [(row, column) for column in range(side)])
    seconds, right = [], 0
    for _ in range(searches):
        scores = [[draw.gauss(0.0, 1.0) for _ in range(side)] for _ in range(2)]
        spent_s, found = _search(table, draw.randrange(count), grid, members, scores, thorough)
        seconds.append(spent_s)
        all_of_them = ((scores[0][row] + scores[1][one], (row, one)) for row in range(side) for one in range(side))
        best = {expert for _, expert in sorted(all_of_them, reverse=True)[:BEST]}
        right += len(best & set(found))
    return Searched(count, seconds, right / (BEST * searches), time.monotonic() - began_s)


def _announce(table: VirtualTable, host: int, member: str, grid: Grid, experts: Sequence[Expert]) -> None:
    entries = claim_entries(grid, experts, {expert: ExpertClaim(1, 0, member) for expert in experts})
    lasting = tuple(Entry(one.key, one.subkey, one.value, LIFETIME_S) for one in entries)
    _, answer = asked(table, host, partial(StoreAsked, entries=lasting, deadline_s=DEADLINE_S))
    assert isinstance(answer, AnswerStore)
    assert all(one.kept for one in answer.stored)


def _search(
    table: VirtualTable,
    node: int,
    grid: Grid,
    members: Sequence[str],
    scores: Sequence[Sequence[float]],
    thorough: bool,
) -> tuple[float, list[Expert]]:
    beam, spent_s = BeamSearch([scores], width=BEST, best=BEST), 0.0
    while beam.wanted:
        keys = {grid.prefix_key(prefix): prefix for prefix in beam.wanted}
        event = partial(GetAsked, keys=tuple(keys), deadline_s=DEADLINE_S, thorough=thorough)
        took_s, answer = asked(table, node, event)
        assert isinstance(answer, AnswerGet)
        spent_s += took_s
        found = {prefix: answer.found[key].records for key, prefix in keys.items()}
        beam.arrived({prefix: _behind(grid, prefix, one, members) for prefix, one in found.items()})
    return spent_s, beam.found()[0]


def _behind(grid: Grid, prefix: Expert, records: Sequence[Record], members: Sequence[str]) -> Collection[int]:
    """The coordinates that the records of a prefix say somebody hosts."""
    if len(prefix) + 1 < len(grid.sides):
        return grid.next_coordinates(prefix, records, members)
    return [expert[-1] for expert in grid.claims(prefix, records, members)]


def run(*, quick: bool = False) -> Part:
    """All sizes."""
    sizes, side, searches = ((60,), 6, 5) if quick else ((100, 1000, 10_000), SIDE, SEARCHES)
    found = [search(count, side, searches) for count in sizes]
    last = found[-1]
    seconds = sum(last.seconds) / len(last.seconds)
    claim = Claim(
        "beam",
        f"the mean time of a search for the best {BEST} of {side}² experts, by a caller that knows nothing, in a table "
        f"of {last.nodes:,} nodes under the virtual clock, is at most the published one",
        f"≤ {1e3 * PUBLISHED_S[10_000]:.0f} ms",
        f"{1e3 * seconds:.0f} ms",
        None if quick else seconds <= PUBLISHED_S[10_000],
    )
    rows = [
        [
            f"{one.nodes:,}",
            1e3 * sum(one.seconds) / len(one.seconds),
            spread([1e3 * each for each in one.seconds], ".0f"),
            f"{1e3 * PUBLISHED_S[one.nodes]:.0f}" if one.nodes in PUBLISHED_S else "",
            f"{one.found:.1%}",
            one.took_s,
        ]
        for one in found
    ]
    return Part(
        "beam",
        "Beam search",
        [claim],
        tables=[
            Table(
                f"Searches for the best {BEST} of {side} × {side} experts",
                ["nodes", "mean ms", "median and spread ms", "published ms", "of the best found", "computed in s"],
                rows,
            )
        ],
        panels=[
            Panel(
                "Beam search, under the virtual clock",
                "nodes",
                "median ms",
                [Series("search", [one.nodes for one in found], [1e3 * median(one.seconds) for one in found])],
                log_x=True,
            )
        ],
        notes=[
            f"{searches} searches by nodes chosen by chance, none of which knew anything of the grid; width {BEST}. "
            f"{min(side, last.nodes)} hosts with one row of the grid each. Latencies and losses as in the part table. "
            "The published times are of other latencies. A caller in a run keeps what it has read for some seconds, "
            "and then waits for none of this."
        ],
    )
