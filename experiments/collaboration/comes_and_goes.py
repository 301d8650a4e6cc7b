"""Eight volunteers that come and go against one process with the same batch, after the same number of steps.

The state machines of both sides, the sums, the forms on the wire and the training are those of a real collaboration;
only time is virtual: computing, messages and links take what the peers' rates say, and nothing waits. Sessions are
exponential with a mean of 4 h and at most 21 h, and as long away on average as a third of that; 4 h are 60 s here, some
fifteen steps. Rates differ by a factor of four. A volunteer that is gone loses what it has not sent; one that returns
takes the state. The model, the data and the first weights of a pair are the same; the order of samples is not, which is
what the spread over seeds shows, too. The loss is that of the held-out digits.
"""

import heapq
import itertools
import random
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from statistics import mean, stdev

from experiments.harness.report import ROOT, Claim, Part, Table
from ravnest.collaboration.packing import Feedback
from ravnest.collaboration.peer_steps import (
    ApplyAverage,
    AverageCame,
    CollectingWentOn,
    CountMicroBatch,
    MicroBatchMade,
    PeerEvent,
    PeerSteps,
    ReportProgress,
    SendContribution,
    StateCame,
    StepOpened,
)
from ravnest.collaboration.step_owner import (
    CollectOn,
    CommitStep,
    ContributionCame,
    Event,
    OpenStep,
    PeerBecameReady,
    PeerLeft,
    ProgressCame,
    StepOwner,
    TimePassed,
)
from ravnest.collaboration.step_sum import StepSum
from ravnest.collaboration.trainer import Trainer
from ravnest.job.config import Job, load_job

JOB = ROOT / "examples" / "collaboration" / "job.yaml"
PEERS = 8
STEPS = 60
SESSION_S, LONGEST_S, AWAY_S = 60.0, 315.0, 20.0
LATENCY_S = 0.05
REPORT_S = 1.0


@dataclass
class _Peer:
    name: str
    trainer: Trainer
    samples_per_s: float
    transfer_s: float
    feedback: Feedback
    steps: PeerSteps = field(default_factory=PeerSteps)
    visit: int = 0
    here: bool = False
    made: int = 0
    told_s: float = 0.0
    free_s: float = 0.0
    """When the last message to it has arrived: messages come in order."""


class Collaboration:
    """One collaboration under a virtual clock."""

    def __init__(self, seed: int, steps: int, job_file: Path = JOB, job: Job | None = None) -> None:
        job = load_job(job_file).model_copy(update={"seed": seed}) if job is None else job
        self._draw = random.Random(seed)
        self._steps = steps
        self.now_s = 0.0
        self._queue: list[tuple[float, int, Callable[[], None]]] = []
        self._number = itertools.count()
        self.backbone = Trainer(job, job_file)
        self.owner = StepOwner(self.backbone.target_batch)
        self._sum = StepSum(self.backbone.packing)
        self.batches: list[int] = []
        self.departures = 0
        self._peers = [
            _Peer(
                f"p{at}",
                Trainer(job, job_file, order=f"p{at}"),
                8.0 * 4 ** (at / (PEERS - 1)),
                0.2 + 0.1 * at,
                Feedback(self.backbone.packing),
            )
            for at in range(PEERS)
        ]

    def run(self) -> None:
        """Make all steps."""
        for peer in self._peers:
            self._at(self._draw.uniform(0, AWAY_S / 2), lambda peer=peer: self._come(peer))  # type: ignore[misc]
        while self.owner.step < self._steps:
            due_s, _, happens = heapq.heappop(self._queue)
            self.now_s = due_s
            happens()
            self._tick()

    def _tick(self) -> None:
        due_s = self.owner.next_due_s(self.now_s)
        if due_s is not None and due_s <= self.now_s + 0.02:
            self._decide(TimePassed())
        elif due_s is not None and (not self._queue or due_s < self._queue[0][0]):
            self._at(due_s - self.now_s + 0.01, lambda: self._decide(TimePassed()))

    def _at(self, after_s: float, happens: Callable[[], None]) -> None:
        heapq.heappush(self._queue, (self.now_s + after_s, next(self._number), happens))

    def _come(self, peer: _Peer) -> None:
        peer.here, peer.steps, peer.visit = True, PeerSteps(), peer.visit + 1
        peer.feedback = Feedback(peer.trainer.packing)
        state, step = {form.name: vector for form, vector in self.backbone.state()}, self.owner.step
        peer.free_s = self.now_s

        def loaded() -> None:
            peer.trainer.load(state, step)

        self._tell(peer, StateCame(step), 3 * peer.transfer_s, loaded)
        stays_s = min(LONGEST_S, self._draw.expovariate(1 / SESSION_S))
        self._at(stays_s, lambda: self._go(peer))

    def _go(self, peer: _Peer) -> None:
        peer.here = False
        self.departures += 1
        self._decide(PeerLeft(f"{peer.name}.{peer.visit}"))
        self._at(self._draw.expovariate(1 / AWAY_S), lambda: self._come(peer))

    def _tell(self, peer: _Peer, event: PeerEvent, takes_s: float, first: Callable[[], None] = lambda: None) -> None:
        visit = peer.visit
        peer.free_s = max(peer.free_s, self.now_s) + takes_s

        def arrives() -> None:
            if peer.here and peer.visit == visit:
                first()
                self._handle(peer, event)

        self._at(peer.free_s + LATENCY_S - self.now_s, arrives)

    def _handle(self, peer: _Peer, event: PeerEvent) -> None:
        was = peer.steps.computes
        for one in peer.steps.handle(event):
            match one:
                case CountMicroBatch():
                    peer.trainer.compute(peer.made)
                    peer.made += 1
                    peer.trainer.count(peer.trainer.job.micro_batch)
                case ReportProgress(step=step, samples=samples, due=due):
                    if due or self.now_s - peer.told_s >= REPORT_S:
                        peer.told_s = self.now_s
                        micro = peer.trainer.job.micro_batch
                        name = f"{peer.name}.{peer.visit}"
                        self._hear(peer, PeerBecameReady(name, step))
                        told = ProgressCame(name, step, samples, peer.samples_per_s, micro, 2.0)
                        self._hear(peer, told)
                case SendContribution(step=step, samples=samples):
                    self._send(peer, step, samples)
                case ApplyAverage():
                    pass  # its mean was applied by `first`, with the same bytes
        if peer.steps.computes and not was:
            self._compute(peer)

    def _compute(self, peer: _Peer) -> None:
        step, visit, micro = peer.steps.step, peer.visit, peer.trainer.job.micro_batch
        assert step is not None

        def made() -> None:
            if not peer.here or peer.visit != visit:
                return
            self._handle(peer, MicroBatchMade(step, micro))
            if peer.steps.computes:
                self._compute(peer)

        self._at(micro / peer.samples_per_s * self._draw.uniform(0.8, 1.2), made)

    def _hear(self, peer: _Peer, event: Event, takes_s: float = 0.0, first: Callable[[], bool] = lambda: True) -> None:
        visit = peer.visit

        def arrives() -> None:
            if peer.here and peer.visit == visit and first():
                self._decide(event)

        self._at(LATENCY_S + takes_s, arrives)

    def _send(self, peer: _Peer, step: int, samples: int) -> None:
        vectors = peer.trainer.contribution()
        said = list(peer.feedback.pieces("contribution", step, samples, vectors, float(samples)))
        name = f"{peer.name}.{peer.visit}"

        def added() -> bool:
            if not self.owner.counts(name, step, samples):
                return False
            self._sum.add(self.backbone.packing.decoded(said, float(samples)), samples, peer.name)
            return True

        self._hear(peer, ContributionCame(name, step, samples), peer.transfer_s, added)

    def _decide(self, event: Event) -> None:
        for one in self.owner.handle(event, self.now_s):
            for peer in (peer for peer in self._peers if peer.here):
                match one:
                    case OpenStep(step=step, stops=stops) if f"{peer.name}.{peer.visit}" in stops:
                        self._tell(peer, StepOpened(step, stops[f"{peer.name}.{peer.visit}"]), 0.0)
                    case CollectOn(step=step, peer=only) if only in (None, f"{peer.name}.{peer.visit}"):
                        self._tell(peer, CollectingWentOn(step), 0.0)
            if isinstance(one, CommitStep):
                self._commit(one)

    def _commit(self, committed: CommitStep) -> None:
        _, average = self._sum.finish(committed.step)
        self.backbone.apply(average)
        self.batches.append(sum(committed.samples.values()))
        for peer in (peer for peer in self._peers if peer.here):

            def applied(peer: _Peer = peer) -> None:
                peer.trainer.apply(average)
                peer.trainer.forget()

            self._tell(peer, AverageCame(committed.step), peer.transfer_s, applied)


def alone(seed: int, steps: int, job_file: Path = JOB) -> Trainer:
    """One process that makes the same number of steps of the target batch."""
    job = load_job(job_file).model_copy(update={"seed": seed})
    trainer = Trainer(job, job_file, order="alone")
    total = StepSum(trainer.packing)
    micro_batches = -(-trainer.target_batch // job.micro_batch)
    for step in range(steps):
        for one in range(micro_batches):
            trainer.compute(step * micro_batches + one)
            trainer.count(job.micro_batch)
        samples = micro_batches * job.micro_batch
        named = zip(trainer.packing.summed, trainer.contribution(), strict=True)
        total.add({form.name: vector for form, vector in named}, samples)
        trainer.apply(total.finish(step)[1])
    return trainer


def measure(*, quick: bool) -> Part:
    """Pairs of a collaboration and one process, each with its seed."""
    steps = 6 if quick else STEPS
    rows, together, by_itself, batches = [], [], [], []
    for seed in range(2 if quick else 6):
        world = Collaboration(seed, steps)
        world.run()
        together.append(world.backbone.evaluate()["loss"])
        by_itself.append(alone(seed, steps).evaluate()["loss"])
        batches += [batch / world.backbone.target_batch for batch in world.batches]
        rows.append((seed, together[-1], by_itself[-1], world.departures, round(world.now_s)))
    difference = mean(together) - mean(by_itself)
    spread = stdev(by_itself)
    return Part(
        name="comes_and_goes",
        title="Volunteers that come and go, and one process with the same batch",
        claims=[
            Claim(
                "loss",
                "difference of the mean held-out losses, of the spread (standard deviation) of one process over seeds",
                "at most 1",
                f"{abs(difference) / spread:.2f} ({difference:+.4f} of {spread:.4f})",
                None if quick else abs(difference) <= spread,
            ),
            Claim(
                "batch",
                "samples of a step, of the target: least and most",
                "1.0 to 1.1",
                f"{min(batches):.3f} to {max(batches):.3f}",
                None if quick else min(batches) >= 1.0 and max(batches) <= 1.1,
            ),
        ],
        tables=[
            Table(
                f"after {steps} steps",
                ("seed", "held-out loss together", "alone", "departures", "virtual seconds"),
                rows,
            )
        ],
        notes=[" ".join((__doc__ or "").split("\n\n")[1].split())],
    )
