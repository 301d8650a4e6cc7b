"""Two backbone machines and two volunteers, each a process: who joins late takes the state from the machine that stands
by."""

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
    return torch.nn.Sequential(torch.nn.Linear(6, 200_000), torch.nn.Tanh(), torch.nn.Linear(200_000, 2))
"""

JOB = """
mode: collaborative
target_batch: 48
model: {factory: large:model}
data: {factory: large:Data}
micro_batch: 8
optimizer: {name: adamw, lr: 1.0e-4}
averaging: {wire: float16}
stop: {samples: SAMPLES}
evaluate_every: SAMPLES
"""


@pytest.fixture
def all_of_them(tmp_path: Path) -> Iterator[Collaborators]:
    found = Collaborators(tmp_path, "large", CODE, JOB.replace("SAMPLES", str(48 * 40)))
    yield found
    found.end()


def test_who_joins_late_takes_the_state_from_the_machine_that_stands_by(all_of_them: Collaborators) -> None:
    said, two = all_of_them.said, all_of_them.two
    all_of_them.backbones()
    all_of_them.join("ada")
    until(lambda: "step 3:" in said("first"), "steps are made")
    all_of_them.join("eva")
    until(lambda: "holds the state" in said("eva"), "the late one has the state")
    joined = [line for line in said("first").splitlines() if "eva joins" in line]
    assert len(joined) == 1
    assert f"takes the state from {two}" in joined[0]
    assert len(all_of_them.hashes("first", "second", "ada", "eva")) == 1
    for name in ("ada", "eva"):
        assert "hands over no state" not in said(name)
        assert "trying again" not in said(name)
