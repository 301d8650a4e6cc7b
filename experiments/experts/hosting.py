"""Parts `hosting` and `delay`: what a host makes of its processor, and what many requests in flight hide of delays."""

import time
from collections.abc import Sequence

import torch

from experiments.experts.hosted import feed_forward, gradient_of, hosted, throughput
from experiments.harness.report import Claim, Panel, Part, Series, Table, median, spread
from ravnest.experts.config import experts_from
from ravnest.experts.expert import HostedExpert

WIDTH, HIDDEN_BATCH = 512, 256
LAYERS = 4
IN_FLIGHT, BATCH = 64, 64
DELAYS_S = (0.0, 0.01, 0.05, 0.1, 0.2)
EXPERT = {
    "expert": f'{{factory: "experiments.experts.hosted:feed_forward", args: {{width: {WIDTH}}}}}',
    "input_shape": f"[{WIDTH}]",
    "optimizer": "{name: sgd, lr: 1e-4}",
    "max_staleness": 100000,
    "copy_every_s": 1000,
}


def local(samples: torch.Tensor, seconds: float) -> float:
    """Samples per second of the same experts, called one after another in this process, with one thread."""
    config = experts_from(
        name="local",
        grid=[LAYERS],
        expert={"factory": "experiments.experts.hosted:feed_forward", "args": {"width": WIDTH}},
        input_shape=[WIDTH],
        optimizer={"name": "sgd", "lr": 1e-4},
    )
    experts = [HostedExpert(feed_forward(WIDTH), config) for _ in range(LAYERS)]
    begun_s, done = time.monotonic(), 0
    while time.monotonic() < begun_s + seconds:
        passed, inputs = samples, []
        for expert in experts:
            inputs.append(passed)
            passed = expert.forward(passed, training=True).clone()
        back = gradient_of(passed)
        for expert, one in zip(reversed(experts), reversed(inputs), strict=True):
            back = expert.backward(one, back, 1)
        done += 1
    return done * len(samples) / (time.monotonic() - begun_s)


def run_hosting(*, quick: bool = False) -> Part:
    """One host's samples per second beside those of the same experts in one process, in turn, five times."""
    rounds, seconds = (2, 1.0) if quick else (5, 8.0)
    samples = torch.randn(HIDDEN_BATCH, WIDTH)
    config = {"name": "hosting", "grid": f"[{LAYERS}]", **EXPERT, "batch": f"{{most_samples: {HIDDEN_BATCH}}}"}
    here, there, failed = [], [], []
    with hosted(config, ["*"]) as (made, client, _):
        path = list(made.places.experts())
        for _ in range(rounds):
            here.append(local(samples, seconds))
            rate, lost = throughput(client, path, samples, in_flight=8, seconds=seconds)
            there.append(rate)
            failed.append(lost)
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
            "process has a core of its own where the machine has one free. Both were measured in turn. Requests that "
            f"failed: {max(failed):.1%} at most."
        ],
    )


def run_delay(*, quick: bool = False) -> Part:
    """Throughput of 64 requests in flight, and of a chain of the same layers, against the delay of a request."""
    delays, seconds = ((0.0, 0.05), 2.0) if quick else (DELAYS_S, 15.0)
    samples = torch.randn(BATCH, WIDTH)
    config = {"name": "delay", "grid": f"[{LAYERS}]", **EXPERT, "batch": f"{{most_samples: {HIDDEN_BATCH}}}"}
    many: list[tuple[float, float]] = []
    chain: list[tuple[float, float]] = []
    with hosted(config, ["*"]) as (made, client, endpoint):
        path = list(made.places.experts())
        for delay_s in delays:
            endpoint.mean_s = delay_s
            many.append(throughput(client, path, samples, in_flight=IN_FLIGHT, seconds=seconds))
            chain.append(throughput(client, path, samples, in_flight=LAYERS, seconds=seconds))
    return _delay_part(delays, many, chain, quick)


def _delay_part(
    delays: Sequence[float], many: Sequence[tuple[float, float]], chain: Sequence[tuple[float, float]], quick: bool
) -> Part:
    lost, chain_lost = 1 - _share(many[-1], many), 1 - _share(chain[-1], chain)
    claim = Claim(
        "delay",
        f"throughput that {IN_FLIGHT} requests in flight lose at a mean delay of {delays[-1] * 1e3:g} ms; a chain of "
        f"the same layers with {LAYERS} batches in flight loses {chain_lost:.0%}",
        "≤ 10 %",
        f"{lost:.1%}",
        None if quick else lost <= 0.1,
    )
    rows = [
        [1e3 * delay, one[0], _share(one, many), f"{one[1]:.1%}", other[0], _share(other, chain)]
        for delay, one, other in zip(delays, many, chain, strict=True)
    ]
    milliseconds = [1e3 * one for one in delays]
    return Part(
        "delay",
        "Throughput against delay",
        [claim],
        tables=[
            Table(
                "Samples per second, forward and backward through four experts",
                ["delay ms", f"{IN_FLIGHT} in flight", "of none", "failed", "chain", "of none"],
                rows,
            )
        ],
        panels=[
            Panel(
                "Throughput against delay",
                "mean delay of a request, ms",
                "samples/s",
                [
                    Series(f"{IN_FLIGHT} in flight", milliseconds, [one[0] for one in many]),
                    Series(f"chain, {LAYERS} in flight", milliseconds, [one[0] for one in chain]),
                ],
            )
        ],
        notes=[
            f"One host process with one thread; blocks of width {WIDTH}, batches of {BATCH} samples; each request is "
            "held back at the caller by an exponentially distributed time. The chain has as many batches in flight as "
            "layers, one for each stage of a pipeline. A request that fails, being later than the deadline from "
            "measured answers, begins its batch anew. What larger experts or smaller ones would lose follows from "
            "their own computing time: the delay is hidden while the requests in flight keep the host busy."
        ],
    )


def _share(one: tuple[float, float], of: Sequence[tuple[float, float]]) -> float:
    """Of the throughput without delay; 0 where nothing was answered without one either."""
    return one[0] / of[0][0] if of[0][0] else 0.0
