"""A backbone, and a volunteer whose model two machines hold: each a process of its own, over encrypted lines."""

import re
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.integration.test_collaboration import command, curve, until

CODE = """
import torch


class Data:
    def __init__(self) -> None:
        inputs = torch.randn(512, 6, generator=torch.Generator().manual_seed(0))
        targets = (inputs[:, 0] > 0).long()
        self.train = torch.utils.data.TensorDataset(inputs, targets)
        self.held_out = torch.utils.data.TensorDataset(inputs[:16], targets[:16])


def model() -> torch.nn.Module:
    return torch.nn.Sequential(torch.nn.Linear(6, 16), torch.nn.Tanh(), torch.nn.Linear(16, 2))
"""

JOB = """
mode: collaborative
target_batch: 64
model: {factory: staged:model}
data: {factory: staged:Data}
micro_batch: 8
optimizer: {name: adamw, lr: 1.0e-2}
averaging: {wire: float16}
stop: {samples: 6400}
evaluate_every: 3200
"""

DEADLINE_S = 120.0


@pytest.fixture
def started() -> Iterator[list[subprocess.Popen[str]]]:
    processes: list[subprocess.Popen[str]] = []
    yield processes
    for process in processes:
        process.kill()
        process.wait(DEADLINE_S)
        assert process.stdout is not None
        process.stdout.close()


def test_a_volunteer_of_two_machines_trains_though_one_is_killed_and_another_takes_its_place(
    tmp_path: Path, started: list[subprocess.Popen[str]]
) -> None:
    job, out, line = tmp_path / "job", tmp_path / "out", tmp_path / "lend.txt"
    job.mkdir()
    (job / "staged.py").write_text(CODE)
    (job / "job.yaml").write_text(JOB)
    backbone = command(tmp_path, "start", str(job / "job.yaml"), "--listen", "127.0.0.1:0", "--out", str(out))
    started.append(backbone)
    until((out / "invitation.txt").exists, "the backbone listens", DEADLINE_S)
    stages = ["--stages", "2", "--line-file", str(line)]
    ada = command(tmp_path, "join", str(out / "invitation.txt"), "--name", "ada", "--yes", *stages)
    started.append(ada)
    until(line.exists, "the line for other machines is written", DEADLINE_S)

    def lend(name: str) -> subprocess.Popen[str]:
        started.append(command(tmp_path, "lend", str(line), "--yes", "--name", name))
        return started[-1]

    cellar = lend("cellar")
    until(lambda: len(curve(out)) >= 3, "three steps were made", DEADLINE_S)
    assert backbone.poll() is None
    cellar.kill()
    attic = lend("attic")
    until(lambda: backbone.poll() is not None, "training has ended", DEADLINE_S)
    told, gave, lent = (process.communicate()[0] for process in (backbone, ada, attic))
    assert backbone.returncode == ada.returncode == attic.returncode == 0, (told, gave, lent)
    assert "cellar is gone" in gave
    assert "attic holds units" in gave
    assert not line.exists()
    backbones = re.search(r"hash ([0-9a-f]{16})", told)
    volunteers = re.search(r"weights' hash ([0-9a-f]{16})", gave)
    assert backbones is not None
    assert volunteers is not None
    assert volunteers[1] == backbones[1]
    steps = curve(out)
    assert len(steps) == 100
    assert all(64 <= step["samples"] <= 70 for step in steps)
    assert steps[-1]["loss"] < 0.5 * steps[0]["loss"]
