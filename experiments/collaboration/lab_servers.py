"""Two servers beside volunteers that nobody reaches, scaled down and for real: links are shaped.

Each machine is a network namespace (wanlab): a server has 40 Mbit/s each way, a volunteer 16, and 10 ms lie between any
two. Eight volunteers, which only open connections outwards, average half a million numbers as float32 with delayed
steps, as in part lab: once with one server as the backbone, and once with a second one that stands by and adds up a
share. Volunteers could carry 16 Mbit/s each, and the servers are what limits. No ring, and no direct exchange, is to be
had among volunteers that do not reach each other. What the program promises is arithmetic on the links' rates, without
headers, latency or encryption.
"""

import tempfile
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
ROUNDS, WARM = 12, 14
"""Shares are planned after three steps that are measured, and begin once all volunteers have reached the helper."""

SERVERS, PORT = ("server0", "server1"), 7800
LOOPBACK = ("127.0.0.1:17801", "127.0.0.1:17802")
BYTES = 4


def measure(*, quick: bool, wanlab: str | None = None) -> Part:
    """In namespaces; `quick`, or without wanlab, the same on loopback, which says nothing of links."""
    program, why = find(wanlab)
    if quick:
        program, why = None, "not part of --quick"
    count, side, rounds, warm = (QUICK_VOLUNTEERS, QUICK_SIDE, 3, 2) if quick else (VOLUNTEERS, SIDE, ROUNDS, WARM)
    names = [f"volunteer{at}" for at in range(count)]
    ours: dict[int, Averagings] = {}
    with ExitStack() as stack:
        lab: Lab | None = None
        if program is not None:
            rates = dict.fromkeys(SERVERS, (SERVER_MBIT, SERVER_MBIT))
            lab = stack.enter_context(
                Lab(program, rates | dict.fromkeys(names, (VOLUNTEER_MBIT, VOLUNTEER_MBIT)), ONE_WAY_S)
            )
        for servers in (1, 2):
            with tempfile.TemporaryDirectory() as folder:
                ours[servers] = collaboration(
                    Path(folder),
                    count,
                    "float32",
                    rounds,
                    side,
                    place=place(lab, servers, names),
                    delayed=True,
                    warm=warm,
                    sample_s=SAMPLE_S,
                )
    return part(
        ours, {servers: promised(servers, count, BYTES * side * side) for servers in ours}, why if lab is None else ""
    )


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


def part(ours: dict[int, Averagings], promise: dict[int, float], why: str) -> Part:
    """What was found, by the number of servers. `why`: links were not shaped; empty: they were."""
    per_s = {servers: 1 / median(found.seconds) if found.seconds else 0.0 for servers, found in ours.items()}
    rows = [
        (
            servers,
            round(60 * per_s[servers], 2),
            round(60 * promise[servers], 2),
            round(per_s[servers] / promise[servers], 3),
            found.failed,
        )
        for servers, found in ours.items()
    ]
    failed = sum(found.failed for found in ours.values())
    steps = failed + sum(len(found.seconds) for found in ours.values())
    gain, share = per_s[2] / per_s[1] if per_s[1] else 0.0, per_s[2] / promise[2]
    least = 0.95 * promise[2] / promise[1]
    return Part(
        name="lab_servers",
        title="Two servers and volunteers that nobody reaches, on shaped links",
        claims=[
            Claim("none failed", "steps without all volunteers, of all", "0", f"{failed} of {steps}", failed == 0),
            Claim(
                "two",
                "averagings of two servers that share the adding up, to those of one",
                f"at least {least:.2f}",
                why or f"{gain:.2f}",
                None if why else gain >= least,
            ),
            Claim(
                "bound",
                "averagings of two servers, of those of the linear program's bound",
                "at least 0.95",
                why or f"{share:.3f}",
                None if why else share >= 0.95,
            ),
        ],
        tables=[
            Table(
                f"{steps} delayed steps, of which {failed} lacked a volunteer",
                ("servers", "averagings per minute", "the program's bound", "of that", "lacked a volunteer"),
                rows,
            )
        ],
        notes=[" ".join((__doc__ or "").split("\n\n")[1].split())],
    )
