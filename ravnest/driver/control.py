"""The state machine of a run: its phases from training to the last evaluation. Pure.

In: messages of the stages, and the time. Out: instructions for the driver, such as messages to send, or a checkpoint
that begins. `RoundOwner` decides when a round opens and is committed (design §7); this module decides when the run
ends, evaluates and saves.

    TRAINING ──stop──► DRAINING ──all drained──► FINISHING ──last round merged and saved──► EVALUATING ──► DONE
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import Enum, auto

from ravnest.errors import RunFailed
from ravnest.pipeline import stage_name
from ravnest.stage import messages as m
from ring_allreduce.rounds import (
    CommitRound,
    FailRun,
    FinishRequested,
    MemberFinished,
    OpenRound,
    OwnerInstruction,
    RoundOwner,
)
from ring_allreduce.rounds import SamplesReported as OwnerSamples
from ring_allreduce.transport import Message


class RunPhase(Enum):
    """Where a run is."""

    TRAINING = auto()
    DRAINING = auto()
    """No micro-batch is injected any more; those in flight are finished."""
    FINISHING = auto()
    """The last round is averaged, and its anchor saved."""
    EVALUATING = auto()
    """The held-out set passes through the anchor."""
    DONE = auto()


@dataclass(frozen=True)
class SendToStage:
    """Send `message` to the stage named `peer`."""

    peer: str
    message: Message


@dataclass(frozen=True)
class EnterPhase:
    """The run has entered another phase."""

    phase: RunPhase


@dataclass(frozen=True)
class BeginCheckpoint:
    """The stages are going to send their state as of `round`."""

    round: int
    samples: int
    """Samples of the fleet behind the round's anchor."""
    updates: Mapping[str, int]
    """The updates of each cluster at its snapshot for the round."""


@dataclass(frozen=True)
class CommitCheckpoint:
    """Every stage has sent its state as of `round`: the checkpoint is to be committed."""

    round: int


@dataclass(frozen=True)
class RecordRoundOpened:
    """A round has been opened. `final` says whether it is the one that ends the run."""

    round: int
    final: bool


@dataclass(frozen=True)
class RecordRoundCommitted:
    """A round has been committed, when the fleet had trained on so many samples."""

    round: int
    samples: int


@dataclass(frozen=True)
class RecordEvaluation:
    """An evaluation has come, as sums that the last stage reported.

    `final` says whether it is of the last anchor. `samples` is what the fleet had trained on when it was ordered.
    """

    samples: int
    evaluated: m.EvaluationFinished
    final: bool


Instruction = (
    SendToStage
    | EnterPhase
    | BeginCheckpoint
    | CommitCheckpoint
    | RecordRoundOpened
    | RecordRoundCommitted
    | RecordEvaluation
)


@dataclass(frozen=True)
class RunShape:
    """What the control needs to know of a run. Samples are the fleet's, counted from the run's first start."""

    clusters: Mapping[str, int]
    """By name: the number of stages."""
    evaluator: str
    """The cluster that evaluates: the fastest."""
    samples_per_update: int
    """Samples that one cluster takes for one update."""
    stop_samples: int | None
    """The run ends when the fleet has made so many samples; None: it ends by time."""
    stop_s: float | None
    """The run ends after so many seconds of training; None: it ends by samples."""
    evaluate_every: int
    """Samples between two evaluations, and between two checkpoints."""
    held_out_batches: int
    """Batches of the held-out set; 0: nothing is evaluated."""
    start_samples: int = 0
    """Samples that were made before a resume."""
    start_updates: Mapping[str, int] = field(default_factory=dict)
    """Updates that each cluster had made before a resume."""

    @property
    def stages(self) -> list[str]:
        """The names of all stages."""
        return [stage_name(name, i) for name, count in self.clusters.items() for i in range(count)]


class RunControl:
    """The course of one run: `handle`, `tick` and `stop` tell it what happens, and return what is to be done."""

    def __init__(self, shape: RunShape, rounds: RoundOwner) -> None:
        """`rounds` owns rings that are named by their numbers: the plan's rings, then those of averaged copies."""
        self._shape = shape
        self._rounds = rounds
        self._updates = {name: shape.start_updates.get(name, 0) for name in shape.clusters}
        self._snapshots: dict[int, dict[str, int]] = {}
        self._drained: dict[str, m.Drained] = {}
        self._rounds_finished: dict[str, int] = {}
        """By stage: the newest round that it has finished."""
        self._saving: dict[int, set[str]] = {}
        """By round: the stages that still send their state."""
        self._next_save = shape.start_samples
        self._next_evaluation = shape.start_samples + shape.evaluate_every
        self._evaluation = 0
        self._evaluated_at = shape.start_samples
        self._evaluating = False
        self._last_round = 0
        self._abandon = False
        self.stopped_early = False
        """Whether an order to stop has ended the run before the job's own `stop`, or kept it from its evaluation."""
        self.phase = RunPhase.TRAINING

    @property
    def samples(self) -> int:
        """Samples that the fleet has trained on, earlier sessions of the run included."""
        return self._shape.start_samples + self.session_samples

    @property
    def session_samples(self) -> int:
        """Samples that the fleet has trained on in this session."""
        return self._samples_of(self._updates) - self._shape.start_samples

    def _samples_of(self, updates: Mapping[str, int]) -> int:
        """Samples that the fleet has trained on when each cluster has made so many `updates`."""
        made = sum(n - self._shape.start_updates.get(name, 0) for name, n in updates.items())
        return self._shape.start_samples + made * self._shape.samples_per_update

    @property
    def updates(self) -> Mapping[str, int]:
        """Each cluster's updates so far."""
        return self._updates

    @property
    def rounds_committed(self) -> int:
        """How many rounds were committed in this session."""
        return self._rounds.committed

    @property
    def saving(self) -> bool:
        """Whether stages are still sending their state for a checkpoint."""
        return bool(self._saving)

    def stop(self, *, evaluate: bool) -> list[Instruction]:
        """End the run: drain, average one last round, and save. With `evaluate` the held-out set passes through the
        anchor afterwards."""
        self._abandon = self._abandon or not evaluate
        if self.phase is not RunPhase.TRAINING:
            return []
        self.stopped_early = not evaluate
        self.phase = RunPhase.DRAINING
        return [EnterPhase(self.phase), *(SendToStage(first, m.Drain()) for first in self.first_stages)]

    @property
    def first_stages(self) -> list[str]:
        """The stages that inject micro-batches, one in each cluster."""
        return [stage_name(name, 0) for name in self._shape.clusters]

    def tick(self, elapsed_s: float) -> list[Instruction]:
        """Stop the run when its time is over. `elapsed_s` counts from the beginning of training."""
        limit_s = self._shape.stop_s
        return self.stop(evaluate=True) if limit_s is not None and elapsed_s >= limit_s else []

    def handle(self, sender: str, message: Message) -> list[Instruction]:
        """Take a message of the stage `sender`. Raises RunFailed for one that contradicts the state of the run."""
        cluster, index = _parse(sender)
        match message:
            case m.Updated() if index == self._shape.clusters[cluster] - 1:
                # Drained may have come earlier, because another stage sends it.
                self._updates[cluster] = max(self._updates[cluster], message.update + 1)
                return self._after_update(cluster)
            case m.ContributionFinishedMessage():
                self._snapshots.setdefault(message.round, {})[cluster] = message.update
                return []
            case m.RingFinishedMessage():
                event = MemberFinished(message.round, sender, str(message.ring))
                return self._follow(self._rounds.handle(event, 0.0))
            case m.Drained():
                expected = self.phase is RunPhase.DRAINING and index == 0 and cluster not in self._drained
                _require(expected, sender, message)
                self._drained[cluster] = message
                self._updates[cluster] = message.updates
                counted = self._count(cluster)
                return counted + self._finish_rounds(cluster) + self._when_all_drained()
            case m.RoundsFinished():
                _require(cluster in self._drained and message.up_to <= self._rounds.opened, sender, message)
                self._rounds_finished[sender] = message.up_to
                return self._when_finished()
            case m.StateSent():
                _require(message.round in self._saving, sender, message)
                return self._state_sent(sender, message.round) + self._when_finished()
            case m.EvaluationFinished():
                evaluator = self._shape.evaluator
                expected = self._evaluating and message.evaluation == self._evaluation
                expected = expected and sender == stage_name(evaluator, self._shape.clusters[evaluator] - 1)
                _require(expected, sender, message)
                return self._evaluated(message)
            case _:
                return []

    def _count(self, cluster: str) -> list[Instruction]:
        """Tell the owner of the rounds how many samples the cluster has made by now."""
        made = self._updates[cluster] - self._shape.start_updates.get(cluster, 0)
        event = OwnerSamples(cluster, made * self._shape.samples_per_update)
        return self._follow(self._rounds.handle(event, 0.0))

    def _after_update(self, cluster: str) -> list[Instruction]:
        out = self._count(cluster)
        if self.phase is not RunPhase.TRAINING:
            return out
        if self._shape.stop_samples is not None and self.samples >= self._shape.stop_samples:
            return out + self.stop(evaluate=True)
        if self.samples >= self._next_evaluation and not self._evaluating:
            self._next_evaluation += self._shape.evaluate_every * (
                1 + (self.samples - self._next_evaluation) // self._shape.evaluate_every
            )
            out += self._evaluate()
        return out

    def _evaluate(self) -> list[Instruction]:
        if not self._shape.held_out_batches:
            return []
        self._evaluating = True
        self._evaluation += 1
        self._evaluated_at = self.samples
        order = m.Evaluate(evaluation=self._evaluation, batches=self._shape.held_out_batches)
        return [SendToStage(stage_name(self._shape.evaluator, 0), order)]

    def _evaluated(self, message: m.EvaluationFinished) -> list[Instruction]:
        final = self.phase is RunPhase.EVALUATING and message.evaluation == self._evaluation
        self._evaluating = False
        done = RecordEvaluation(self._evaluated_at, message, final)
        return [done, *self._end()] if final else [done, *self._when_finished()]

    def _follow(self, orders: list[OwnerInstruction]) -> list[Instruction]:
        out: list[Instruction] = []
        for order in orders:
            match order:
                case OpenRound(final=False):
                    out.append(RecordRoundOpened(order.round, final=False))
                    for name, count in self._shape.clusters.items():
                        if name in self._drained:  # no gradient flows there any more that could carry the stamp
                            out += self._finish_rounds(name)
                        else:
                            last = stage_name(name, count - 1)
                            out.append(SendToStage(last, m.RoundOpenedMessage(round=order.round)))
                case CommitRound():
                    out += self._commit(order.round)
                case FailRun():
                    raise RunFailed(order.reason)
        return out

    def _commit(self, round_: int) -> list[Instruction]:
        taken = self._snapshots.pop(round_, {})
        for stale in [r for r in self._snapshots if r < round_]:
            del self._snapshots[stale]
        last = round_ == self._last_round
        save = last or (not self.saving and self.samples >= self._next_save and not self._last_round)
        out: list[Instruction] = [RecordRoundCommitted(round_, self.samples)]
        if save:
            self._next_save = self.samples + self._shape.evaluate_every
            self._saving[round_] = set(self._shape.stages)
            out.append(BeginCheckpoint(round_, self._samples_of(taken), taken))
        order = m.RoundCommittedMessage(round=round_, save=save)
        return out + [SendToStage(stage, order) for stage in self._shape.stages]

    def _state_sent(self, sender: str, round_: int) -> list[Instruction]:
        self._saving[round_].discard(sender)
        if self._saving[round_]:
            return []
        del self._saving[round_]
        return [CommitCheckpoint(round_)]

    def _when_all_drained(self) -> list[Instruction]:
        if self.phase is not RunPhase.DRAINING or len(self._drained) < len(self._shape.clusters):
            return []
        self.phase = RunPhase.FINISHING
        out: list[Instruction] = [EnterPhase(self.phase)]
        before = self._rounds.opened
        self._rounds.handle(FinishRequested(), 0.0)  # opens the last round; the stages hear of it below
        self._last_round = self._rounds.opened
        if self._last_round > before:
            out.append(RecordRoundOpened(self._last_round, final=True))
        for name in self._shape.clusters:
            out += self._finish_rounds(name)
        return out

    def _finish_rounds(self, cluster: str) -> list[Instruction]:
        """A drained cluster contributes to every open round at once: others may wait for it at their lag limit."""
        order = m.FinishRounds(
            up_to=self._rounds.opened,
            updates=self._drained[cluster].updates,
            final=self.phase is RunPhase.FINISHING,
        )
        return [SendToStage(stage_name(cluster, i), order) for i in range(self._shape.clusters[cluster])]

    def _when_finished(self) -> list[Instruction]:
        finished = all(self._rounds_finished.get(stage) == self._last_round for stage in self._shape.stages)
        if self.phase is not RunPhase.FINISHING or not finished or self.saving or self._evaluating:
            return []
        if self._abandon or not self._shape.held_out_batches:
            self.stopped_early = self._abandon
            return self._end()
        self.phase = RunPhase.EVALUATING
        return [EnterPhase(self.phase), *self._evaluate()]

    def _end(self) -> list[Instruction]:
        self.phase = RunPhase.DONE
        return [EnterPhase(self.phase), *(SendToStage(stage, m.Stop()) for stage in self._shape.stages)]


def _require(expected: bool, sender: str, message: Message) -> None:
    if not expected:
        raise RunFailed(f"{sender} sent {message}, which contradicts the state of the run")


def _parse(name: str) -> tuple[str, int]:
    cluster, _, index = name.rpartition(".s")
    return cluster, int(index)
