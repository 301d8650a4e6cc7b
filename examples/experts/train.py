"""One trainer: python examples/experts/train.py NAME PEER RENDEZVOUS TRAINERS STEPS

PEER: a node of the hash table. RENDEZVOUS: where the trainers meet, who average what is not an expert's.
The data: scikit-learn's 1,797 handwritten digits of 8 × 8 pixels, four fifths to train on.
"""

import sys
from collections.abc import Iterator
from pathlib import Path

import torch
from sklearn.datasets import load_digits
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

from ravnest.experts import ExpertsClient, RemoteMixtureOfExperts, Trainer, load_experts, shared_token
from ring_allreduce import Group, RavnestError

BATCH, SHOWN_EVERY, BALANCE = 64, 20, 0.02


class Network(nn.Module):
    """The trainer's own layers below and above the mixture of experts that others host."""

    def __init__(self, client: ExpertsClient) -> None:
        super().__init__()
        (width,) = client.config.input_shape
        self.below = nn.Linear(64, width)
        self.mixture = RemoteMixtureOfExperts(client, k=4)
        self.above = nn.Linear(width, 10)

    def forward(self, pixels: Tensor) -> Tensor:
        """(samples, 64) → (samples, 10)"""
        logits: Tensor = self.above(self.mixture(torch.relu(self.below(pixels))))
        return logits


def loss(network: nn.Module, batch: object) -> Tensor:
    pixels, labels = batch
    logits = network(pixels)
    return cross_entropy(logits, labels) + BALANCE * network.mixture.balance


def batches(pixels: Tensor, labels: Tensor, steps: int, seed: int) -> Iterator[tuple[Tensor, Tensor]]:
    draw = torch.Generator().manual_seed(seed)
    for _ in range(steps):
        chosen = torch.randint(len(labels), (BATCH,), generator=draw)
        yield pixels[chosen], labels[chosen]


def main(name: str, peer: str, rendezvous: str, trainers: int, steps: int) -> None:
    torch.set_num_threads(1)
    torch.manual_seed(0)  # all trainers begin with the same weights
    digits = load_digits()
    pixels, labels = torch.tensor(digits.data, dtype=torch.float32) / 16, torch.tensor(digits.target)
    order = torch.randperm(len(labels), generator=torch.Generator().manual_seed(0))
    train, held_out = order.tensor_split([len(order) * 4 // 5])
    config = load_experts(Path(__file__).with_name("experts.yaml"))
    client = ExpertsClient.opened(config, [peer], token=shared_token(None, "127.0.0.1", config.name), label=name)
    try:
        client.wait_for_experts(len(config.places))
        network = Network(client)
        with Group.join(rendezvous, name=name, size=trainers) as group:
            trainer = Trainer(
                network,
                torch.optim.Adam(network.parameters(), 2e-3),
                loss,
                in_flight=4,
                average=group.average,
                average_every=10,
            )
            recent: list[float] = []
            seed = sum(name.encode())
            for number, one in enumerate(trainer.run(batches(pixels[train], labels[train], steps, seed)), 1):
                recent = [*recent, one][-SHOWN_EVERY:]
                if number % SHOWN_EVERY == 0:
                    dropped = sum(network.mixture.figures.dropped.values())
                    print(f"{name}: step {number}, loss {sum(recent) / len(recent):.3f}, {dropped} dropped", flush=True)
        network.eval()
        with torch.no_grad():
            right = (network(pixels[held_out]).argmax(1) == labels[held_out]).float().mean()
        stale = max(network.mixture.figures.staleness, default=0)
        print(f"{name}: {right:.1%} of the held-out digits are right; gradients at most {stale} stale", flush=True)
    finally:
        client.close()


if __name__ == "__main__":
    if len(sys.argv) != 6 or not (sys.argv[4].isdecimal() and sys.argv[5].isdecimal()):
        print(__doc__, file=sys.stderr)
        sys.exit(2)
    try:
        main(sys.argv[1], sys.argv[2], sys.argv[3], int(sys.argv[4]), int(sys.argv[5]))
    except RavnestError as error:
        print(f"{type(error).__name__}: {error}", file=sys.stderr)
        sys.exit(error.exit_code)
