"""Part `many`: whether thousands of experts stay with the hosts that have claimed them, are found, and what that costs.

The hosts are processes of this machine, as a user starts them, and share the grid among themselves. The experts are
small: what is measured is the table, and not what experts compute. Meanwhile one caller trains by all of them.
"""

import time
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial

import psutil
import torch

from experiments.experts.hosted import Hosted, hosted
from experiments.harness.report import Claim, Part, Table
from ravnest.errors import ExpertsUnavailable
from ravnest.experts import RemoteMixtureOfExperts
from ravnest.experts.announcements import look
from ravnest.experts.grid import Expert

HOSTS, WIDTH, BATCH, BEST = 4, 8, 64, 4
SIDES = (32, 64)
WATCHED_S, EVERY_S = 60.0, 1.0
WITHIN_S = 300.0
"""All experts have to be hosted after so long; else what there is counts."""


@dataclass(frozen=True)
class Many:
    """Of one grid. hosted_s: until all experts could be called; None where they could not within `WITHIN_S`. kept: the
    experts that the same host had at the end. look_s: of one look at all of the table. processor: of one host, on
    average, in processors. why: what kept it from being measured."""

    experts: int
    hosts: int
    hosted_s: float | None = None
    kept: int = 0
    look_s: float = 0.0
    processor: float = 0.0
    requests: int = 0
    failed: int = 0
    why: str = ""


def measure(side: int, hosts: int, watched_s: float) -> Many:
    """Host side × side experts, and train by them for a while."""
    config = {
        "name": "many",
        "grid": f"[{side}, {side}]",
        "expert": f'{{factory: "experiments.experts.hosted:feed_forward", args: {{width: {WIDTH}}}}}',
        "input_shape": f"[{WIDTH}]",
        "optimizer": "{name: sgd, lr: 1e-3}",
    }
    experts, began_s = side * side, time.monotonic()
    try:
        with hosted(config, [["--most-experts", str(experts // hosts)]] * hosts, WITHIN_S) as there:
            hosted_s = time.monotonic() - began_s
            before, _ = _hosts_of(there)
            spent_s, watch_s = _processor_s(there), time.monotonic()
            requests, failed = _train(there, watched_s)
            processor = (_processor_s(there) - spent_s) / hosts / (time.monotonic() - watch_s)
            after, look_s = _hosts_of(there)
    except ExpertsUnavailable as error:
        return Many(experts, hosts, why=str(error))
    kept = sum(after.get(expert) == host for expert, host in before.items())
    return Many(experts, hosts, hosted_s, kept, look_s, processor, requests, failed)


def _hosts_of(there: Hosted) -> tuple[dict[Expert, str], float]:
    """Who hosts what, as one look at the table shows it, and how long that takes."""
    began_s = time.monotonic()
    seen = there.table.run(partial(look, grid=there.config.places)).result()
    return {expert: one.value.member for expert, one in seen.claims.items()}, time.monotonic() - began_s


def _processor_s(there: Hosted) -> float:
    times = [psutil.Process(process).cpu_times() for process in there.processes]
    return float(sum(one.user + one.system for one in times))


def _train(there: Hosted, seconds: float) -> tuple[int, int]:
    """Forwards and backwards of one batch each second; returns the requests, and how many of them failed."""
    torch.manual_seed(0)
    mixture = RemoteMixtureOfExperts(there.client, k=BEST)
    optimizer = torch.optim.SGD(mixture.parameters(), 0.1)
    ends_s = time.monotonic() + seconds
    while time.monotonic() < ends_s:
        next_s = time.monotonic() + EVERY_S
        optimizer.zero_grad()
        mixture(torch.randn(BATCH, WIDTH)).pow(2).mean().backward()
        optimizer.step()
        time.sleep(max(0.0, next_s - time.monotonic()))
    figures = mixture.figures
    return figures.forwards + figures.backwards, sum(figures.dropped.values())


def run(*, quick: bool = False) -> Part:
    """All sizes."""
    if quick:
        return many_part([measure(8, 2, 4.0)], quick=True)
    return many_part([measure(side, HOSTS, WATCHED_S) for side in SIDES])


def many_part(measured: Sequence[Many], *, quick: bool = False) -> Part:
    """What comes of the measurements; the last one is judged, unless it was a quick one."""
    last = measured[-1]
    claim = Claim(
        "many",
        f"{last.experts:,} experts that {last.hosts} processes of this machine host are all found, and are still with "
        f"the same hosts when a caller has trained by them for {WATCHED_S:.0f} s",
        f"{last.experts:,}",
        last.why or f"{last.kept:,}",
        None if quick else last.kept == last.experts,
    )
    rows = [
        [
            f"{one.experts:,}",
            one.hosts,
            one.hosted_s,
            f"{one.kept:,}",
            1e3 * one.look_s,
            f"{one.processor:.0%}",
            one.requests,
            one.failed,
        ]
        for one in measured
    ]
    columns = ["experts", "hosts", "all hosted after s", "kept", "a look ms", "processor", "requests", "failed"]
    return Part(
        "many",
        "Many experts",
        [claim],
        tables=[Table("Small experts on hosts that share this machine", columns, rows)],
        notes=[
            f"Blocks of width {WIDTH}; one caller asks {BEST} experts of each of {BATCH} samples, forward and "
            f"backward, once every {EVERY_S:g} s. The times from the start until all are hosted have the starts of the "
            "processes in them, and 8 s for which hosts look before they claim. `processor` is what one host spends of "
            "a processor meanwhile, most of it for looks at all that the others claim, every 2 s. Processes share one "
            "machine here: the processors that all hosts and the caller take together are its bound."
        ],
    )
