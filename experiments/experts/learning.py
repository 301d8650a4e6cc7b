"""Part `learning`: accuracy with 64 and 256 experts when answers are late and a tenth of the requests fail.

The program's own layer, gate, beam search and experts compute; time is virtual. A batch begins with the trunk's weights
of its moment; its forward reaches the experts after a delay, and its backward after another one, both exponentially
distributed. Between the two, other batches update the same experts and the trunk: that is the staleness.
"""

import copy
import dataclasses
import hashlib
import json
import random
from collections.abc import Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from functools import cache
from heapq import heappop, heappush
from pathlib import Path

import torch
from sklearn.datasets import load_digits
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

from experiments.harness.report import ROOT, Claim, Part, Table, median, spread
from ravnest.errors import ExpertsUnavailable
from ravnest.experts.batch_calls import Caller
from ravnest.experts.beam_search import BeamSearch
from ravnest.experts.calls import Answered, Call, Failed
from ravnest.experts.config import experts_from
from ravnest.experts.expert import HostedExpert
from ravnest.experts.grid import Expert
from ravnest.experts.mixture import RemoteMixtureOfExperts
from ravnest.training.optimizer import uncompiled

WIDTH, BATCH, UPDATES, IN_FLIGHT = 32, 64, 500, 4
COMPUTE_S = 0.02
"""What a batch takes besides the delays."""

BASELINE = (0.0, 0.0, 1)
SETTINGS = (BASELINE, (0.1, 0.1, IN_FLIGHT), (1.0, 0.1, IN_FLIGHT))
"""Mean delay in seconds, the share of requests that fail, and the batches in flight. The first one is what the others
are held against: nothing is late, nothing fails, and nothing is stale."""


class Block(nn.Module):
    def __init__(self, width: int) -> None:
        super().__init__()
        self.layers = nn.Sequential(nn.LayerNorm(width), nn.Linear(width, width), nn.ReLU(), nn.Linear(width, width))

    def forward(self, x: Tensor) -> Tensor:
        result: Tensor = x + self.layers(x)
        return result


def block(width: int) -> nn.Module:
    """The factory of this part's experts."""
    return Block(width)


class Here(Caller):
    """All experts, in this process. A part of the requests fails, by a generator of its own."""

    def __init__(self, side: int, fails: float, seed: int) -> None:
        self.config = experts_from(
            name="learning",
            grid=[side, side],
            expert={"factory": "experiments.experts.learning:block", "args": {"width": WIDTH}},
            input_shape=[WIDTH],
            optimizer={"name": "adam", "lr": 3e-3, "clip_norm": 1.0},
            seed=seed,
        )
        self.fails, self._draw = fails, random.Random(seed)
        # Calls come from inside an operator, where torch records no graph in this thread.
        self._thread = ThreadPoolExecutor(1, "experts", torch.set_num_threads, (1,))
        torch.manual_seed(seed)
        self.experts = {one: HostedExpert(block(WIDTH), self.config) for one in self.config.places.experts()}

    def __deepcopy__(self, memo: object) -> "Here":
        return self

    def find(self, search: BeamSearch) -> list[list[tuple[Expert, str]]]:
        search.take_all(self.config.grid)
        return [[(expert, "here") for expert in found] for found in search.found()]

    def call(self, calls: Sequence[Call]) -> list["Future[Answered | Failed]"]:
        return [self._thread.submit(self._answered, call) for call in calls]

    def _answered(self, call: Call) -> Answered | Failed:
        if self._draw.random() < self.fails:
            return Failed("lost")
        expert = self.experts[call.expert]
        if call.updates is None:
            return Answered(expert.forward(call.tensors[0], training=call.training).clone(), expert.updates, 0, 0.0)
        staleness = expert.updates - call.updates
        return Answered(expert.backward(call.tensors[0], call.tensors[1], 1), expert.updates, staleness, 0.0)


class Network(nn.Module):
    def __init__(self, client: Here) -> None:
        super().__init__()
        self.below, self.above = nn.Linear(64, WIDTH), nn.Linear(WIDTH, 10)
        self.mixture = RemoteMixtureOfExperts(client, k=4)

    def forward(self, pixels: Tensor) -> Tensor:
        result: Tensor = self.above(self.mixture(torch.relu(self.below(pixels))))
        return result


@cache
def digits() -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """scikit-learn's digits: pixels and labels of four fifths to train on, and of the rest."""
    bunch = load_digits()
    pixels, labels = torch.tensor(bunch.data, dtype=torch.float32) / 16, torch.tensor(bunch.target)
    order = torch.randperm(len(labels), generator=torch.Generator().manual_seed(0))
    train, held_out = order.tensor_split([len(order) * 4 // 5])
    return pixels[train], labels[train], pixels[held_out], labels[held_out]


@dataclass
class Learned:
    accuracy: float
    half_way: float
    """The accuracy after half of the updates: it tells whether training was over."""
    staleness: float
    most_staleness: int
    trunk_staleness: float
    failed: float
    lost_batches: int


def learn(side: int, delay_s: float, fails: float, in_flight: int, seed: int, updates: int) -> Learned:
    """Train one network of `side`² experts under the virtual clock."""
    torch.manual_seed(seed)
    client = Here(side, fails, seed)
    torch.manual_seed(seed)
    network = Network(client)
    optimizer = uncompiled(torch.optim.Adam)(network.parameters(), lr=2e-3)  # type: ignore[call-arg]
    train_x, train_y, _, _ = digits()
    draw, clock = torch.Generator().manual_seed(seed), random.Random(seed + 1)
    events: list[tuple[float, int, Callable[[float], None]]] = []
    trunk_staleness: list[int] = []
    lost, number = 0, 0

    def after(now_s: float, mean_s: float, action: Callable[[float], None]) -> None:
        nonlocal number
        number += 1
        late_s = clock.expovariate(1 / mean_s) if mean_s else 0.0
        heappush(events, (now_s + COMPUTE_S / 2 + late_s, number, action))

    def begin(now_s: float) -> None:
        replica, begun = copy.deepcopy(network), len(trunk_staleness)
        chosen = torch.randint(len(train_y), (BATCH,), generator=draw)

        def forward(reached_s: float) -> None:
            nonlocal lost
            try:
                logits = replica(train_x[chosen])
            except ExpertsUnavailable:
                lost += 1
                begin(reached_s)
                return
            assert replica.mixture.balance is not None
            loss = cross_entropy(logits, train_y[chosen]) + 0.02 * replica.mixture.balance
            after(reached_s, delay_s, lambda ended_s: backward(loss, ended_s))

        def backward(loss: Tensor, ended_s: float) -> None:
            nonlocal lost
            try:
                gradients = torch.autograd.grad(loss, list(replica.parameters()))
            except ExpertsUnavailable:
                lost += 1
                begin(ended_s)
                return
            for own, one in zip(network.parameters(), gradients, strict=True):
                own.grad = one
            optimizer.step()
            trunk_staleness.append(len(trunk_staleness) - begun)
            begin(ended_s)

        after(now_s, delay_s, forward)

    for place in range(in_flight):
        begin(place * COMPUTE_S / in_flight)
    half_way = 0.0
    while len(trunk_staleness) < updates:
        now_s, _, action = heappop(events)
        action(now_s)
        if not half_way and len(trunk_staleness) >= updates // 2:
            half_way = _accuracy(network, client)
    figures = network.mixture.figures
    dropped, requests = sum(figures.dropped.values()), figures.forwards + figures.backwards
    right = _accuracy(network, client)
    stale = figures.staleness
    count = max(1, sum(stale.values()))
    return Learned(
        right,
        half_way,
        sum(age * times for age, times in stale.items()) / count,
        max(stale, default=0),
        sum(trunk_staleness) / len(trunk_staleness),
        dropped / requests,
        lost,
    )


def _accuracy(network: Network, client: Here) -> float:
    """On what is held out, with no request failing; training goes on as if it had not been asked."""
    fails, draw = client.fails, client._draw.getstate()
    client.fails = 0.0
    _, _, held_out_x, held_out_y = digits()
    network.eval()
    with torch.no_grad():
        right: float = (network(held_out_x).argmax(1) == held_out_y).float().mean().item()
    network.train()
    client.fails = fails
    client._draw.setstate(draw)
    return right


def kept(side: int, setting: tuple[float, float, int], seed: int, updates: int) -> Learned:
    """What `learn` finds, or what an earlier call with the same code has found: the part may be run in pieces."""
    path = ROOT / "runs" / "experiments" / "experts" / f"{_code()}-{side}-{setting}-{seed}-{updates}.json"
    if not path.exists():
        found = learn(side, *setting, seed, updates)
        path.parent.mkdir(parents=True, exist_ok=True)
        unfinished = path.with_suffix(".unfinished")
        unfinished.write_text(json.dumps(dataclasses.asdict(found)), encoding="utf-8")
        unfinished.replace(path)
    return Learned(**json.loads(path.read_text(encoding="utf-8")))


@cache
def _code() -> str:
    files = [Path(__file__), *sorted((ROOT / "ravnest" / "experts").glob("*.py"))]
    return hashlib.sha256(b"".join(file.read_bytes() for file in files)).hexdigest()[:16]


def run(side: int, *, quick: bool = False) -> Part:
    """`side`² experts, all settings, with five seeds."""
    seeds, updates = (1, 40) if quick else (5, UPDATES)
    claims, rows = [], []
    found = {setting: [kept(side, setting, seed, updates) for seed in range(seeds)] for setting in SETTINGS}
    without = median([one.accuracy for one in found[BASELINE]])
    for (delay_s, fails, in_flight), learned in found.items():
        accuracy = [100 * one.accuracy for one in learned]
        rows.append(
            [
                1e3 * delay_s,
                f"{fails:.0%}",
                in_flight,
                spread(accuracy, ".1f"),
                spread([100 * one.half_way for one in learned], ".1f"),
                median([one.staleness for one in learned]),
                max(one.most_staleness for one in learned),
                median([one.trunk_staleness for one in learned]),
                f"{median([one.failed for one in learned]):.1%}",
                sum(one.lost_batches for one in learned),
            ]
        )
        if fails:
            points = median(accuracy) - 100 * without
            claims.append(
                Claim(
                    f"{side * side} experts, {1e3 * delay_s:g} ms",
                    f"accuracy with {fails:.0%} of the requests failing, a mean delay of {1e3 * delay_s:g} ms each way "
                    f"and {in_flight} batches in flight, against no failures, no delay and one batch at a time",
                    "at most 1 point less",
                    f"{points:+.1f} points",
                    None if quick else points >= -1.0,
                )
            )
    return Part(
        f"learning-{side * side}",
        f"Learning with failures and delays, {side * side} experts",
        claims,
        tables=[
            Table(
                "Held-out accuracy on scikit-learn's digits, median and spread of the seeds",
                [
                    "delay ms",
                    "failing",
                    "in flight",
                    "accuracy %",
                    "half way",
                    "staleness of experts",
                    "most",
                    "of the trunk",
                    "failed",
                    "lost batches",
                ],
                rows,
            )
        ],
        notes=[
            f"{updates} updates of {BATCH} samples, 4 experts for each sample, {seeds} seeds. Time is virtual: a batch "
            f"takes {COMPUTE_S * 1e3:g} ms and two exponential delays. All of a batch's requests have the same delay. "
            "Failing requests are drawn one by one, forward and backward. "
            "The weights that are evaluated are those after the last update, and no request fails then."
        ],
    )
