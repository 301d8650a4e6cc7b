"""Two servers beside volunteers that nobody reaches, scaled down and for real: links are shaped.

Each machine is a network namespace (wanlab): a server has 40 Mbit/s each way, a volunteer 16, and 10 ms lie between any
two. Eight volunteers, which only open connections outwards, average half a million numbers as float32: once with one
server as the backbone, and once with a second one that stands by and adds up a share; and each with steps that wait
for their average, and with delayed ones. Volunteers could carry 16 Mbit/s each, so the servers are what limits. No
ring, and no direct exchange, is to be had among volunteers that do not reach each other. What the program promises is
arithmetic on the links' rates, without headers, latency or encryption, and half of it where gradients and averages
travel one after the other.
"""

import itertools
import tempfile
from collections.abc import Mapping
from contextlib import ExitStack
from pathlib import Path

from experiments.allreduce.lab import Lab, find
from experiments.collaboration.beside_hivemind import Averagings, Place, collaboration
from experiments.collaboration.lab import SAMPLE_S
from experiments.harness.report import Claim, Part, Table, median
from ravnest.collaboration.averaging_plan import paper_bound
from ravnest.collaboration.links import Collaboration, PeerLinks

MBIT = 1e6 / 8
SERVER_MBIT, VOLUNTEER_MBIT, ONE_WAY_S = 40.0, 16.0, 0.01
VOLUNTEERS, QUICK_VOLUNTEERS = 8, 2
SIDE, QUICK_SIDE = 700, 32
ROUNDS, WARM = 8, 10
"""Shares are planned after three steps that are measured, and begin once all volunteers have reached the helper."""

SERVERS, PORT = ("server0", "server1"), 7800
LOOPBACK = ("127.0.0.1:17801", "127.0.0.1:17802")
BYTES = 4

Way = tuple[int, bool]
"""How many servers, and whether steps are delayed."""


def measure(*, quick: bool, wanlab: str | None = None) -> Part:
    """In namespaces; `quick`, or without wanlab, the same on loopback, which says nothing of links."""
    program, why = find(wanlab)
    if quick:
        program, why = None, "not part of --quick"
    count, side, rounds, warm = (QUICK_VOLUNTEERS, QUICK_SIDE, 3, 2) if quick else (VOLUNTEERS, SIDE, ROUNDS, WARM)
    names = [f"volunteer{at}" for at in range(count)]
    ours: dict[Way, Averagings] = {}
    with ExitStack() as stack:
        lab: Lab | None = None
        if program is not None:
            rates = dict.fromkeys(SERVERS, (SERVER_MBIT, SERVER_MBIT))
            lab = stack.enter_context(
                Lab(program, rates | dict.fromkeys(names, (VOLUNTEER_MBIT, VOLUNTEER_MBIT)), ONE_WAY_S)
            )
        for delayed, servers in itertools.product((False, True), (1, 2)):
            with tempfile.TemporaryDirectory() as folder:
                ours[servers, delayed] = collaboration(
                    Path(folder),
                    count,
                    "float32",
                    rounds,
                    side,
                    place=place(lab, servers, names),
                    delayed=delayed,
                    warm=warm,
                    sample_s=SAMPLE_S,
                )
    promise = {servers: promised(servers, count, BYTES * side * side) for servers in (1, 2)}
    return part(ours, promise, why if lab is None else "")


def place(lab: Lab | None, servers: int, names: list[str]) -> Place:
    """Where the programs of so many servers run."""
    at = LOOPBACK if lab is None else tuple(f"{lab.addresses[server]}:{PORT}" for server in SERVERS)
    second = (SERVERS[1], at[1]) if servers == 2 else None
    inside = Place.inside if lab is None else lab.inside
    return Place(inside, SERVERS[0], names, at[0], stands_by=second, link_mbit=SERVER_MBIT)


def promised(servers: int, count: int, n_bytes: int) -> float:
    """Averagings per second by the links' rates alone: the program's bound."""
    server, volunteer = SERVER_MBIT * MBIT, VOLUNTEER_MBIT * MBIT
    machines = tuple(PeerLinks(name, server, server, 0.0, keeps_state=True) for name in SERVERS[:servers])
    volunteers = tuple(PeerLinks(f"v{at}", volunteer, volunteer, 1.0) for at in range(count))
    hidden = {(one.name, other.name): 0.0 for one in volunteers for other in volunteers if one is not other}
    return paper_bound(
        Collaboration((*machines, *volunteers), float(n_bytes), float(count), hidden), range(servers, servers + count)
    )


def part(ours: Mapping[Way, Averagings], promise: Mapping[int, float], why: str) -> Part:
    """What was found, by the number of servers and whether steps are delayed. `promise`: the bounds, by servers. `why`:
    links were not shaped; empty: they were."""
    rows, per_s = [], dict[Way, float]()
    for (servers, delayed), found in ours.items():
        allowed = promise[servers] if delayed else promise[servers] / 2
        per_s[servers, delayed] = 1 / median(found.seconds) if found.seconds else 0.0
        share = per_s[servers, delayed] / allowed
        steps = "delayed" if delayed else "one after the other"
        rows.append(
            (servers, steps, *(round(60 * one, 2) for one in (per_s[servers, delayed], allowed)), round(share, 3))
        )
    failed = sum(found.failed for found in ours.values())
    count = failed + sum(len(found.seconds) for found in ours.values())
    least = 0.95 * promise[2] / promise[1]
    claims = [Claim("none failed", "steps without all volunteers, of all", "0", f"{failed} of {count}", failed == 0)]
    for delayed, name, words in ((False, "two", ""), (True, "two, delayed", ", delayed steps")):
        gain = per_s[2, delayed] / per_s[1, delayed] if per_s[1, delayed] else 0.0
        claims.append(
            Claim(
                name,
                f"averagings of two servers that share the adding up, to those of one{words}",
                f"at least {least:.2f}",
                why or f"{gain:.2f}",
                None if why else gain >= least,
            )
        )
    return Part(
        name="lab_servers",
        title="Two servers and volunteers that nobody reaches, on shaped links",
        claims=claims,
        tables=[
            Table(
                f"{count} steps, of which {failed} lacked a volunteer",
                ("servers", "steps", "averagings per minute", "the program and the links allow", "of that"),
                rows,
            )
        ],
        notes=[" ".join((__doc__ or "").split("\n\n")[1].split())],
    )
