"""Experts in processes: hosts as a user starts them, a trainer, and one host that is killed while it trains; and a run
of a plan whose model calls experts.
"""

import json
import re
import socket
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path
from statistics import mean

import pytest
import torch
from torch import Tensor, nn
from typer.testing import CliRunner

from ravnest.cli.main import app
from ravnest.experts import ExpertsClient, RemoteMixtureOfExperts, Trainer, load_experts, shared_token
from tests.support.commands import RAVNEST, environment, ravnest, ravnest_process

pytestmark = pytest.mark.timeout(240)

FILE = """
name: test
grid: [2, 2]
expert: {factory: "tests.support.experts:block", args: {width: 8}}
input_shape: [8]
optimizer: {name: sgd, lr: 0.05}
copy_every_s: 0.5
"""
JOB = """
model: {{factory: calling:network}}
data: {{factory: calling:data}}
loss: {{function: calling:loss}}
experts: {{peers: ["{peer}"], token_file: token}}
micro_batch: 8
update_every: 2
optimizer: {{name: sgd, lr: 0.1}}
activation_checkpointing: always
average_every: 128
stop: {{samples: 512}}
evaluate_every: 256
"""
NODES = """
nodes:
  - {name: a0, gflops: 0.02, memory_gb: 4, up_mbps: 400, down_mbps: 400}
  - {name: a1, gflops: 0.02, memory_gb: 4, up_mbps: 400, down_mbps: 400}
links:
  - {between: [a0, a1], latency_ms: 1, mbps: 400}
"""
CALLING = """
from pathlib import Path
from types import SimpleNamespace

import torch
from torch import nn
from torch.utils.data import TensorDataset

from ravnest.experts import RemoteMixtureOfExperts, load_experts


class Network(nn.Module):
    def __init__(self):
        super().__init__()
        self.below, self.above = nn.Linear(8, 8), nn.Linear(8, 8)
        self.mixture = RemoteMixtureOfExperts(load_experts(Path(__file__).with_name("experts.yaml")), k=2)

    def forward(self, x):
        mixed, balance = self.mixture.with_balance(self.below(x))
        return self.above(mixed), balance


def network():
    return Network()


def data():
    x = torch.randn(256, 8)
    return SimpleNamespace(train=TensorDataset(x, x.flip(1)), held_out=TensorDataset(x[:32], x[:32].flip(1)))


def loss(output, target):
    return (output[0] - target).pow(2).mean() + 0.02 * output[1]
"""
START_S, TAKEN_OVER_S = 90.0, 90.0


def free_udp_port() -> int:
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


class Host:
    """A `ravnest experts serve`, whose lines go to a file."""

    def __init__(self, folder: Path, name: str, experts: str, *others: str) -> None:
        self.lines = folder / f"{name}.txt"
        options = ["--name", name, "--experts", experts, "--threads", "1", *others]
        with self.lines.open("w") as lines:
            words = [*RAVNEST, "experts", "serve", str(folder / "experts.yaml"), *options]
            self.process = subprocess.Popen(words, stdout=lines, stderr=subprocess.STDOUT, env=environment())

    def said(self, pattern: str, deadline_s: float) -> str:
        """The first group of the first match in what it has printed. Fails the test after the deadline."""
        ends_s = time.monotonic() + deadline_s
        while time.monotonic() < ends_s:
            found = re.search(pattern, self.lines.read_text())
            if found:
                return found[1]
            assert self.process.poll() is None, self.lines.read_text()
            time.sleep(0.1)
        raise AssertionError(f"no {pattern!r} in {self.lines.read_text()}")


def squared(module: nn.Module, batch: object) -> Tensor:
    assert isinstance(batch, Tensor)
    loss: Tensor = (module(batch) - batch.flip(1)).pow(2).mean()
    return loss


def batches(count: int) -> Iterator[Tensor]:
    draw = torch.Generator().manual_seed(0)
    return (torch.randn(16, 8, generator=draw) for _ in range(count))


def test_training_goes_on_when_a_host_is_killed_and_its_experts_go_on_from_copies(tmp_path: Path) -> None:
    (tmp_path / "experts.yaml").write_text(FILE)
    config = load_experts(tmp_path / "experts.yaml")
    token = tmp_path / "token"  # so all is encrypted, and one of the hosts may be behind a router
    hosts = [Host(tmp_path, "desk", "0.*", "--token-file", str(token))]
    client = None
    try:
        peer = hosts[0].said(r"its node of the table at (\S+)", START_S)
        hosts.append(Host(tmp_path, "shed", "1.*", "--peer", peer, "--token-file", str(token), "--outwards-only"))
        client = ExpertsClient.opened(config, [peer], token=shared_token(token, "127.0.0.1", "test"))
        client.wait_for_experts(4, START_S)
        torch.manual_seed(0)
        module = nn.Sequential(nn.Linear(8, 8), RemoteMixtureOfExperts(client, k=2))
        trainer = Trainer(module, torch.optim.SGD(module.parameters(), 0.05), squared, in_flight=3)
        before = list(trainer.run(batches(60)))
        shown = CliRunner().invoke(app, ["experts", "show", str(tmp_path / "experts.yaml"), "--peer", peer, "--json"])
        found = json.loads(shown.output)
        assert (found["hosted"], len(found["hosts"]), len(found["callers"])) == (4, 2, 1)
        hosts[1].process.kill()
        during = list(trainer.run(batches(60)))
        hosts[0].said(r"1\.(\d): hosted here, copy, [1-9]", TAKEN_OVER_S)
        client.wait_for_experts(4, TAKEN_OVER_S)
        after = list(trainer.run(batches(60)))
        # On a busy machine whole batches may go unanswered: each is counted.
        failed = trainer.figures.failed + trainer.figures.too_stale
        assert len(before) + len(during) + len(after) + failed == 180
        assert mean(after[-20:]) < mean(during[-20:]) < mean(before[:20])
        hosts[0].process.terminate()
        assert hosts[0].process.wait(60) == 0
        assert "requests of" in hosts[0].lines.read_text()
    finally:
        if client is not None:
            client.close()
        for host in hosts:
            host.process.kill()
            host.process.wait(20)


@pytest.mark.timeout(480)
def test_a_run_trains_experts_that_a_layer_of_its_model_calls_and_a_plan_asks_none(tmp_path: Path) -> None:
    job = JOB.replace("calling", tmp_path.name)  # a module of another name when the test is tried again
    for name, text in (("experts.yaml", FILE), ("nodes.yaml", NODES), (f"{tmp_path.name}.py", CALLING)):
        (tmp_path / name).write_text(text)
    port = free_udp_port()
    (tmp_path / "job.yaml").write_text(job.format(peer=f"127.0.0.1:{port}"))
    made = ravnest(tmp_path, "plan", "nodes.yaml", "--min-stages", "2")  # nobody is at that address yet
    assert made.returncode == 0, made.stderr
    assert "counts no time for their answers" in made.stdout + made.stderr
    host = Host(tmp_path, "shed", "*.*", "--token-file", str(tmp_path / "token"), "--table-port", str(port))
    try:
        for number in range(4):
            host.said(rf"{number // 2}\.{number % 2}: hosted here, (fresh)", START_S)
        ran = ravnest_process(tmp_path, "run", "--out", "r")
        assert ran.returncode == 0, ran.stdout + ran.stderr + host.lines.read_text()
        metrics = [json.loads(line) for line in (tmp_path / "r/metrics.jsonl").read_text().splitlines()]
        losses = [one["loss"] for one in metrics if one["kind"] == "evaluated"]
        assert losses[-1] < 0.9 * losses[0]
        (grid,) = [one for one in metrics if one["kind"] == "experts"][-1]["grids"]
        assert (grid["grid"], [one["experts"] for one in grid["hosts"]]) == ("test", [4])
        again = ravnest(tmp_path, "evaluate", "r", "--json")
        assert again.returncode == 0, again.stderr
        assert json.loads(again.stdout)["loss"] == pytest.approx(losses[-1], rel=1e-4)
        # A resume goes on from the last checkpoint, with the experts as they are by then.
        (tmp_path / "job.yaml").write_text(job.format(peer=f"127.0.0.1:{port}").replace("samples: 512", "samples: 768"))
        longer = ravnest(tmp_path, "plan", "nodes.yaml", "--min-stages", "2", "--check", "none")
        assert longer.returncode == 0, longer.stderr
        more = ravnest_process(tmp_path, "run", "--out", "r", "--resume", "--json")
        assert more.returncode == 0, more.stderr + host.lines.read_text()
        found = json.loads(more.stdout)
        assert found["samples"] >= 768
        assert found["held_out_loss"] < 1.1 * losses[-1]
        host.process.terminate()
        assert host.process.wait(60) == 0
        # 96 micro-batches, each with one or more gradients for experts.
        updates = re.search(r"([0-9,]+) updates", host.lines.read_text().splitlines()[-1])
        assert updates is not None, host.lines.read_text()
        assert int(updates[1].replace(",", "")) >= 96
    finally:
        host.process.kill()
        host.process.wait(20)
