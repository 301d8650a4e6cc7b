"""Two backbone machines and three volunteers, each a process: the second one adds up a share, and is killed."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.collaborators import Collaborators, until

CODE = """
import time

import torch


class Rows(torch.utils.data.Dataset):
    def __init__(self, size: int) -> None:
        self.inputs = torch.randn(size, 6, generator=torch.Generator().manual_seed(0))

    def __len__(self) -> int:
        return len(self.inputs)

    def __getitem__(self, index: int):
        time.sleep(0.01)
        return self.inputs[index], (self.inputs[index, 0] > 0).long()


class Data:
    def __init__(self) -> None:
        self.train, self.held_out = Rows(512), Rows(8)


def model() -> torch.nn.Module:
    return torch.nn.Sequential(torch.nn.Linear(6, 20_000), torch.nn.Tanh(), torch.nn.Linear(20_000, 2))
"""

JOB = """
mode: collaborative
target_batch: 96
model: {factory: wide:model}
data: {factory: wide:Data}
micro_batch: 8
optimizer: {name: adamw, lr: 1.0e-4}
averaging: {wire: float16}
stop: {samples: 2880}
evaluate_every: 2880
"""


@pytest.fixture
def all_of_them(tmp_path: Path) -> Iterator[Collaborators]:
    found = Collaborators(tmp_path, "wide", CODE, JOB)
    yield found
    found.end()


def test_a_machine_that_stands_by_adds_up_a_share_and_costs_no_step_when_it_is_killed(
    all_of_them: Collaborators,
) -> None:
    said = all_of_them.said
    all_of_them.backbones("--link-mbit", "100")
    names = ["ada", "eva", "lea"]
    for name in names:
        all_of_them.join(name)
    until(lambda: f"{all_of_them.two} may add up shares" in said("first"), "an epoch begins")
    until(lambda: "step 4:" in said("first"), "steps are made")
    all_of_them.started["second"].kill()
    until(lambda: f"{all_of_them.two} adds up no share" in said("first"), "the helper is missed")
    assert len(all_of_them.hashes("first", *names)) == 1
    assert all(said(name).count("trying again") == 0 for name in names)
