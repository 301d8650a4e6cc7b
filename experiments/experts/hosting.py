"""Parts `hosting` and `delay`: what a host makes of its processor, and what many requests in flight hide of delays."""

import time
from collections.abc import Sequence
from dataclasses import dataclass

import torch

from experiments.experts.hosted import Alone, feed_forward, gradient_of, hosted, throughput
from experiments.harness.report import Claim, Panel, Part, Series, Table, median, spread
from ravnest.experts.config import experts_from
from ravnest.experts.expert import HostedExpert

WIDTH, HIDDEN_BATCH = 512, 256
LAYERS = 4
IN_FLIGHT, BATCH = 64, 64
DELAYS_S = (0.01, 0.05, 0.1, 0.2)
TIMES = 5
"""So often each delay is measured with all in flight: two measurements of one thing differ by some percent."""

MOST_UNSTEADY = 1.25
"""Where throughputs without delay differ by more, the machine was unsteady: only what each time says is judged then."""
MOST_LOST = 0.1
"""The part of the throughput that may be lost at the longest delay."""

ALONE = (
    "Rates are those of a processor of one's own: the time for which the kernel let who computes wait for one "
    "(/proc/PID/schedstat) is taken off."
)

EXPERT = {
    "expert": f'{{factory: "experiments.experts.hosted:feed_forward", args: {{width: {WIDTH}}}}}',
    "input_shape": f"[{WIDTH}]",
    "optimizer": "{name: sgd, lr: 1e-4}",
    "max_staleness": 100000,
    "copy_every_s": 1000,
}


def local(samples: torch.Tensor, seconds: float) -> float:
    """Samples per second of the same experts, called one after another in this process, with one thread, as if it had a
    processor of its own."""
    config = experts_from(
        name="local",
        grid=[LAYERS],
        expert={"factory": "experiments.experts.hosted:feed_forward", "args": {"width": WIDTH}},
        input_shape=[WIDTH],
        optimizer={"name": "sgd", "lr": 1e-4},
    )
    experts = [HostedExpert(feed_forward(WIDTH), config) for _ in range(LAYERS)]
    begun_s, done, alone = time.monotonic(), 0, Alone("thread-self")
    while time.monotonic() < begun_s + seconds:
        passed, inputs = samples, []
        for expert in experts:
            inputs.append(passed)
            passed = expert.forward(passed, training=True).clone()
        back = gradient_of(passed)
        for expert, one in zip(reversed(experts), reversed(inputs), strict=True):
            back = expert.backward(one, back, 1)
        done += 1
    return alone.factor() * done * len(samples) / (time.monotonic() - begun_s)


def run_hosting(*, quick: bool = False) -> Part:
    """One host's samples per second beside those of the same experts in one process, in turn, five times."""
    rounds, seconds = (2, 1.0) if quick else (5, 8.0)
    samples = torch.randn(HIDDEN_BATCH, WIDTH)
    config = {"name": "hosting", "grid": f"[{LAYERS}]", **EXPERT, "batch": f"{{most_samples: {HIDDEN_BATCH}}}"}
    here, there, failed, waited = [], [], [], []
    with hosted(config, [["--experts", "*"]]) as host:
        path = list(host.config.places.experts())
        for _ in range(rounds):
            here.append(local(samples, seconds))
            passed = throughput(host, path, samples, in_flight=8, seconds=seconds)
            there.append(passed.alone)
            failed.append(passed.failed)
            waited.append(1 - passed.rate / passed.alone if passed.alone else 0.0)
    ratios = [one / other for one, other in zip(there, here, strict=True)]
    claim = Claim(
        "hosting",
        f"one host's samples/s at batch {HIDDEN_BATCH} against the same experts called in one process, one thread each",
        "≥ 0.8×",
        f"{median(ratios):.2f}× ({spread(ratios, '.2f')})",
        None if quick else median(ratios) >= 0.8,
    )
    rows = [
        ["called in this process", median(here), spread(here, ".0f")],
        ["hosted", median(there), spread(there, ".0f")],
    ]
    return Part(
        "hosting",
        "Hosting",
        [claim],
        tables=[Table("Samples per second, forward and backward of four experts", ["where", "median", "spread"], rows)],
        notes=[
            f"Feed-forward blocks of width {WIDTH}, hidden {4 * WIDTH}. Eight batches in flight from one caller, whose "
            f"process has a core of its own where the machine has one free. Both were measured in turn. {ALONE} It "
            f"waited for {max(waited):.0%} at most of the time in which it had something to do. "
            f"Requests that failed: {max(failed):.1%} at most."
        ],
    )


@dataclass(frozen=True)
class Beside:
    """Samples per second with a delay, and right before it without one, both as if the host had not waited for a
    processor; and the share of requests that failed. waited: the largest part of the time for which it did. busy: the
    part of the time in which it had something to do, with the delay."""

    delay_s: float
    rate: float
    failed: float
    without: float
    waited: float = 0.0
    busy: float = 1.0

    @property
    def share(self) -> float:
        """Of the throughput without delay; 0 where nothing was answered without one either."""
        return self.rate / self.without if self.without else 0.0


def run_delay(*, quick: bool = False) -> Part:
    """Throughput of 64 requests in flight, and of a chain of the same layers, against the delay of a request. Each is
    measured several times, each time right after the same without delay."""
    delays, times, seconds = ((0.05,), 1, 2.0) if quick else (DELAYS_S, TIMES, 12.0)
    samples = torch.randn(BATCH, WIDTH)
    config = {"name": "delay", "grid": f"[{LAYERS}]", **EXPERT, "batch": f"{{most_samples: {HIDDEN_BATCH}}}"}
    many: list[list[Beside]] = []
    chain: list[Beside] = []
    with hosted(config, [["--experts", "*"]]) as host:
        path = list(host.config.places.experts())

        def beside(in_flight: int, delay_s: float) -> Beside:
            host.endpoint.mean_s = 0.0
            without = throughput(host, path, samples, in_flight=in_flight, seconds=seconds)
            host.endpoint.mean_s = delay_s
            with_it = throughput(host, path, samples, in_flight=in_flight, seconds=seconds)
            waited = max(1 - one.rate / one.alone if one.alone else 0.0 for one in (without, with_it))
            return Beside(delay_s, with_it.alone, with_it.failed, without.alone, waited, with_it.busy)

        for delay_s in delays:
            many.append([beside(IN_FLIGHT, delay_s) for _ in range(times)])
            chain.append(beside(LAYERS, delay_s))
    return delay_part(many, chain, quick=quick)


def delay_part(many: Sequence[Sequence[Beside]], chain: Sequence[Beside], *, quick: bool) -> Part:
    """Judge by the median of the times. Where the same measurement without delay did not come out alike each time, all
    times must say the same, each against its own measurement right before it. many: by delay, each time."""
    rates = [one.without for times in many for one in times]
    unsteady = min(rates) <= 0.0 or max(rates) / min(rates) > MOST_UNSTEADY
    shares = [[one.share for one in times] for times in many]
    lost, chain_lost = [1 - one for one in shares[-1]], 1 - chain[-1].share
    unsure = unsteady and (min(rates) <= 0.0 or len({one <= MOST_LOST for one in lost}) > 1)
    claim = Claim(
        "delay",
        f"throughput that {IN_FLIGHT} requests in flight lose at a mean delay of {1e3 * chain[-1].delay_s:g} ms, the "
        f"median of {len(lost)} times; a chain of the same layers with {LAYERS} batches in flight loses "
        f"{chain_lost:.0%}",
        f"≤ {100 * MOST_LOST:.0f} %",
        f"{median(lost):.1%} ({min(lost):.1%} to {max(lost):.1%})"
        + (", on a machine too busy to tell" if unsure else ""),
        None if quick or unsure else median(lost) <= MOST_LOST,
    )
    rows = [
        [
            1e3 * other.delay_s,
            median([one.rate for one in times]),
            spread(of_none, ".2f"),
            f"{min(one.busy for one in times):.0%}",
            f"{max(one.failed for one in times):.1%}",
            other.rate,
            f"{other.share:.2f}",
        ]
        for times, of_none, other in zip(many, shares, chain, strict=True)
    ]
    milliseconds = [1e3 * one.delay_s for one in chain]
    everything = [*(one for times in many for one in times), *chain]
    return Part(
        "delay",
        "Throughput against delay",
        [claim],
        tables=[
            Table(
                "Samples per second, forward and backward through four experts",
                ["delay ms", f"{IN_FLIGHT} in flight", "of none", "busy", "failed", "chain", "of none"],
                rows,
            )
        ],
        panels=[
            Panel(
                "Throughput against delay",
                "mean delay of a request, ms",
                "of that without delay",
                [
                    Series(f"{IN_FLIGHT} in flight", milliseconds, [median(one) for one in shares]),
                    Series(f"chain, {LAYERS} in flight", milliseconds, [one.share for one in chain]),
                ],
            )
        ],
        notes=[
            f"One host process with one thread; blocks of width {WIDTH}, batches of {BATCH} samples; each request is "
            "held back at the caller by an exponentially distributed time. The chain has as many batches in flight as "
            f"layers, one for each stage of a pipeline. {ALONE} The host waited for "
            f"{max(one.waited for one in everything):.0%} at most of the time in which it had something to do, and had "
            "something to do for the part `busy` of the time, at least. Each was measured without delay right before "
            f"it was with one, {len(lost)} times (the chain once), by whole passes after the first seconds; "
            f"without, {IN_FLIGHT} in flight made {spread(rates, '.0f')} samples/s. Where these differ by more than "
            f"{MOST_UNSTEADY:g} times, only what all times say is judged. A request that fails, being later than the "
            "deadline from measured answers, begins its batch anew. What larger experts or smaller ones would "
            "lose follows from their own computing time: the delay is hidden while the requests in flight keep the "
            "host busy."
        ],
    )
