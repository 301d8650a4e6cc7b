"""A collaboration of the real programs, backbone and volunteers, on machines of a virtual network.

In: a job's numbers, machines with their links and their speed. Out: what the backbone has written, and how each program
has ended. Only computing is imitated: a micro-batch is really computed, and takes as long as the machine's speed says.
"""

import hashlib
import json
import shutil
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from unittest import mock

from experiments.collaboration.virtual_network import Machine, VirtualNetwork
from ravnest.collaboration import backbone as backbone_module
from ravnest.collaboration import stand_by as stand_by_module
from ravnest.collaboration import volunteer as volunteer_module
from ravnest.collaboration.backbone import Backbone
from ravnest.collaboration.backbone_state import BackboneResult, BackboneState
from ravnest.collaboration.evaluations import Evaluations, at_once
from ravnest.collaboration.invitation import Invitation
from ravnest.collaboration.serving import serve_or_stand_by
from ravnest.collaboration.trainer import MicroBatch, Trainer
from ravnest.collaboration.volunteer import Volunteer
from ravnest.dht import new_identity
from ravnest.job.config import Job, load_job

PORT = 7800
FAST = 125e6
"""Bytes per second of a gigabit."""

CODE = """
import torch
from torch.utils.data import TensorDataset


class Data:
    def __init__(self) -> None:
        inputs = torch.randn(512, 16, generator=torch.Generator().manual_seed(0))
        targets = (inputs[:, 0] * inputs[:, 1] > 0).long()
        self.train = TensorDataset(inputs, targets)
        self.held_out = TensorDataset(inputs[:32], targets[:32])


def model(width: int) -> torch.nn.Module:
    return torch.nn.Sequential(torch.nn.Linear(16, width), torch.nn.Tanh(), torch.nn.Linear(width, 2))
"""

JOB = """
mode: collaborative
target_batch: {target}
model: {{factory: {module}:model, args: {{width: {width}}}}}
data: {{factory: {module}:Data}}
micro_batch: {micro}
optimizer: {{name: adamw, lr: 1.0e-3}}
averaging: {{wire: {wire}}}
delayed_step: {delayed}
gradient_rank: {rank}
stop: {{samples: {samples}}}
evaluate_every: {every}
checkpoints: {{keep: {keep}}}
"""


class VirtualWorld:
    """One collaboration. `running` it patches what the programs take from the real world."""

    def __init__(
        self,
        folder: Path,
        *,
        steps: int,
        target: int,
        micro: int = 8,
        width: int = 16,
        latency_s: float = 0.02,
        wire: str = "float16",
        delayed: bool = False,
        rank: int | None = None,
        every_state: bool = False,
        beside: bool = False,
    ) -> None:
        """`every_state`: the state of each step is kept. `beside`: what evaluates may take time, beside what serves."""
        self.net = VirtualNetwork(latency_s)
        self.job_file = folder / "job" / "job.yaml"
        self.job_file.parent.mkdir(parents=True)
        module = "virtual_" + hashlib.sha256(str(folder).encode()).hexdigest()[:12]  # no two folders share a module
        (self.job_file.parent / f"{module}.py").write_text(CODE)
        text = JOB.format(
            module=module,
            target=target,
            width=width,
            micro=micro,
            samples=steps * target,
            wire=wire,
            delayed=str(delayed).lower(),
            rank="null" if rank is None else rank,
            every=target if every_state else steps * target,
            keep=steps + 1 if every_state else 2,
        )
        self.job_file.write_text(text)
        self.job: Job = load_job(self.job_file)
        self._beside = beside
        self.out = folder / "out"
        self.home = folder / "home"
        self.invitation: Invitation | None = None
        self.results: dict[int, BackboneResult] = {}
        """By the number of the backbone machine."""
        self.serving: list[int] = []
        """The numbers of the machines that have begun to serve, in that order."""
        self.steps = 0
        """That the backbone has made."""
        self.told: list[str] = []
        """What backbone machines have said, line by line."""
        self.volunteers: dict[str, Volunteer] = {}
        self.machines: dict[str, Machine] = {}

    @contextmanager
    def running(self) -> Iterator["VirtualWorld"]:
        """The programs' lines are those of the network. All programs have ended afterwards."""
        with (
            mock.patch.object(backbone_module, "Lines", self.net.lines),
            mock.patch.object(volunteer_module, "Lines", self.net.lines),
            mock.patch.object(stand_by_module, "Lines", self.net.lines),
        ):
            try:
                yield self
            finally:
                self.net.close()

    def start_backbone(
        self, up: float = FAST, down: float = FAST, *, number: int = 0, machines: int = 1, resume: bool = False
    ) -> Machine:
        """Start a backbone machine: the first, or the one of that number of so many.

        Returns once the first one listens; a further one is given the keys, and nothing else, unless it resumes.
        """
        ports = [PORT + other for other in range(machines)]
        own = ports.pop(number)
        out = self.out if not number else self.out.with_name(f"out{number}")
        if number and not out.exists():
            out.mkdir()
            shutil.copy(self.out / "keys.json", out / "keys.json")

        def ready(backbone: Backbone) -> None:
            self.invitation = self.invitation or backbone.invitation
            self.serving.append(number)

        def program() -> None:
            self.results[number] = serve_or_stand_by(
                BackboneState(
                    self.job,
                    self.job_file,
                    out,
                    resume=resume or number > 0,
                    tell=self._tell,
                    now=self.net.now,
                    evaluations=Evaluations(self._evaluates if self._beside else at_once, self.net.sleep, self.net.now),
                ),
                listen=f"127.0.0.1:{own}",
                addresses=(f"127.0.0.1:{own}",),
                others=tuple(f"127.0.0.1:{port}" for port in ports),
                serves_first=not number and not resume,
                ready=ready,
                tell=self._tell,
                now=self.net.now,
                sleep=self.net.sleep,
            )

        machine = self.net.start(f"backbone {number}", program, up, down)
        assert self.net.run(lambda: self.invitation is not None or machine.error is not None, 60.0)
        if machine.error is not None:
            raise machine.error
        return machine

    @property
    def result(self) -> BackboneResult | None:
        """What any backbone machine has returned, once one has."""
        return next(iter(self.results.values()), None)

    def join(
        self, name: str, samples_per_s: float, up: float = FAST, down: float = FAST, leaves_after: int = 0
    ) -> Machine:
        """A volunteer joins now. `leaves_after`: so many steps after which it leaves; 0: it stays."""
        assert self.invitation is not None
        volunteer = _Volunteer(self, name, samples_per_s)
        self.volunteers[name] = volunteer
        stop: Callable[[], bool] = lambda: 0 < leaves_after <= volunteer.given.steps  # noqa: E731
        self.machines[name] = self.net.start(name, lambda: volunteer.work(stop), up, down)
        return self.machines[name]

    def _evaluates(self, work: Callable[[], None]) -> None:
        self.net.start("evaluating", work, FAST, FAST)

    def _tell(self, line: str) -> None:
        self.told.append(line)
        self.steps += " samples of " in line

    def curve(self) -> list[dict[str, Any]]:
        """The steps that were made, as the backbone has written them."""
        path = self.out / "curve.jsonl"
        lines = path.read_text().splitlines() if path.exists() else []
        return [entry for entry in map(json.loads, lines) if "samples" in entry]

    def people(self) -> dict[str, dict[str, Any]]:
        """The leaderboard by name."""
        return {entry["name"]: entry for entry in json.loads((self.out / "people.json").read_text())}


class _Volunteer(Volunteer):
    """A volunteer whose computing takes as long as its machine's speed says, and whose code lies here already."""

    def __init__(self, world: VirtualWorld, name: str, samples_per_s: float) -> None:
        assert world.invitation is not None
        super().__init__(
            world.invitation,
            new_identity(),
            name,
            world.home,
            agree=lambda code, folder, files, signatures: True,
            now=world.net.now,
            sleep=world.net.sleep,
            patience_s=600.0,
            beside=self._computing_beside,
        )
        self._world, self._samples_per_s = world, samples_per_s

    def _computing_beside(self) -> "_BesideInTurn":
        return _BesideInTurn(self._world.net, self._world.job.micro_batch / self._samples_per_s)

    def trainer(self, files: dict[str, bytes], job_name: str, session: int) -> Trainer:
        if self._trainer is None:
            self._trainer = Trainer(self._world.job, self._world.job_file, order=f"{self.given.visits}.{session}")
            if self._world.job.delayed_step:
                return self._trainer
            compute, micro = self._trainer.compute, self._world.job.micro_batch

            def paced(number: int) -> MicroBatch:
                made = compute(number)
                self._world.net.sleep(micro / self._samples_per_s)
                return made

            self._trainer.compute = paced  # type: ignore[method-assign]
        return self._trainer


class _BesideInTurn:
    """Work is done at once, and vectors travel for as long as the machine's speed says that it takes."""

    def __init__(self, net: VirtualNetwork, takes_s: float) -> None:
        self._net, self._takes_s = net, takes_s

    def run(self, work: Callable[[], MicroBatch], tend: Callable[[float], None]) -> MicroBatch:
        until_s = self._net.now() + self._takes_s
        made = work()
        while self._net.now() < until_s:
            tend(until_s - self._net.now())
        return made

    def close(self) -> None:
        pass
