"""What a volunteer does with a step: when it computes, when it sends what it has, and when it applies. Sans-I/O.

In: what came from the backbone and what was computed, in the order of events. Out: instructions. A volunteer holds the
weights of one step at a time. It computes until it is told at how many samples to stop, sends what it has then, and
waits for the average, or to be told to go on. Averages come in order; each makes the next step. Where steps are short
it may be told at how many samples to stop before the average has come with which that step begins.

**Delayed.** With `delayed` it does not wait: it computes the next batch by the weights that it has, while the last one
is averaged. So batch k is computed by weights with k − 1 averages, one less than they have when its own is applied: a
staleness of 1 (0 for the first batch, and for a batch in which a volunteer joins). An average that comes meanwhile is
held until the batch under way is sent; then everyone applies it, and begins the next batch alike. Who is told to go on
with a batch that it has sent already gives what it has of the next one to it, unless that is not needed after all.
"""

from dataclasses import dataclass


@dataclass(frozen=True)
class StateCame:
    """The weights and the optimizer's state of `step` are loaded."""

    step: int


@dataclass(frozen=True)
class MicroBatchMade:
    """A micro-batch's gradient is there, by the weights of `step`, which have so many averages in them. It counts only
    where `CountMicroBatch` follows."""

    step: int
    samples: int


@dataclass(frozen=True)
class StepOpened:
    """The backbone wants what there is as soon as it is `stop` samples. `most_next`: of the step after this one, so
    many samples may be computed before that one is opened, where steps are delayed; None: any number."""

    step: int
    stop: int
    most_next: int | None = None


@dataclass(frozen=True)
class CollectingWentOn:
    """Too little has come to the backbone: the same step goes on."""

    step: int


@dataclass(frozen=True)
class AverageCame:
    """The average of `step` has come whole."""

    step: int


@dataclass(frozen=True)
class TrainingEnded:
    """All averages have come, and there will be no other."""


PeerEvent = StateCame | MicroBatchMade | StepOpened | CollectingWentOn | AverageCame | TrainingEnded


@dataclass(frozen=True)
class CountMicroBatch:
    """Add the micro-batch's gradient to the sum."""


@dataclass(frozen=True)
class ReportProgress:
    """Tell the backbone how many samples the sum has."""

    step: int
    samples: int
    due: bool
    """Whether it is to be told now; else when it was told long enough ago."""


@dataclass(frozen=True)
class SendContribution:
    """Send the sum, and begin another one from zero."""

    step: int
    samples: int


@dataclass(frozen=True)
class ForgetSum:
    """What has been added to the sum comes too late."""


@dataclass(frozen=True)
class ApplyAverage:
    """Apply the average of `step`, and forget the sum, which was computed by weights without it."""

    step: int


PeerInstruction = CountMicroBatch | ReportProgress | SendContribution | ForgetSum | ApplyAverage


class PeerSteps:
    """Owns the number of a volunteer's step, the samples of its sum, and which averages are in its weights."""

    def __init__(self, *, delayed: bool = False) -> None:
        self.step: int | None = None
        """The step whose batch it computes; None before the first state has come."""
        self.samples = 0
        self.applied = 0
        """So many averages are in the weights: the staleness of what it computes is `step` − `applied`."""
        self._delayed = delayed
        self._known = 0  # so many averages have come, of which the last one may not be applied yet
        self._stop: int | None = None
        self._later: dict[int, int] = {}  # by step: where to stop in steps whose weights have not come yet
        self._most: dict[int, int] = {}  # by step: where to wait until it is opened
        self._waiting = False

    @property
    def computes(self) -> bool:
        """Whether there is a micro-batch to be made."""
        return self._has_weights and not self._waiting and not self._is_full

    def handle(self, event: PeerEvent) -> list[PeerInstruction]:
        """Return what follows from an event. What is about another step than its own changes nothing."""
        match event:
            case StateCame(step=step):
                self.applied = self._known = step
                return self._begin(step)
            case MicroBatchMade(step=weights, samples=samples) if self.computes and weights == self.applied:
                self.samples += samples
                return [CountMicroBatch(), *self._sent_or_reported(due=self._is_full)]
            case StepOpened(step=step) if self.step is not None and step >= self.step:
                return self._opened(event)
            case CollectingWentOn(step=step):
                return self._went_on(step)
            case AverageCame(step=step) if self.step is not None and step == self._known:
                return self._took(step)
            case TrainingEnded():
                return self._applied(self._known)
        return []

    @property
    def _has_weights(self) -> bool:
        return self.step is not None and self.applied >= self.step - self._delayed

    @property
    def _is_full(self) -> bool:
        return self.step in self._most and self._stop is None and self.samples >= self._most[self.step]

    @property
    def _is_fresh(self) -> bool:
        """Whether what it has belongs to the next batch as well: a delayed one is computed by these weights."""
        return self._delayed and self.step is not None and self.applied >= self.step

    def _opened(self, event: StepOpened) -> list[PeerInstruction]:
        if event.most_next is not None:
            self._most[event.step + 1] = event.most_next
        if event.step != self.step:
            self._later[event.step] = event.stop
            return []
        if self.samples and not event.stop and self._is_fresh:
            return self._keep()
        self._stop = event.stop
        if not self.samples and not event.stop:
            if self._delayed:
                return self._begin(event.step + 1)
            self._waiting = True
        return self._sent_or_reported(due=False) if self.samples else []

    def _went_on(self, step: int) -> list[PeerInstruction]:
        self._later.pop(step, None)
        self._most.pop(step, None)
        if self._delayed and self.step == step + 1 and self._known <= step:
            self.step = step  # what it has of the next batch, by newer weights or by the same, is wanted for this one
        if self.step != step:
            return []
        self._stop, self._waiting = None, False
        return [ReportProgress(step, self.samples, due=True)] if self._has_weights else []

    def _took(self, step: int) -> list[PeerInstruction]:
        assert self.step is not None
        self._known = step + 1
        if step == self.step and self.samples and self._is_fresh and self._later.get(step + 1) != 0:
            return self._keep()
        if step >= self.step:  # its batch is over, without what it has not sent
            forgotten: list[PeerInstruction] = [ForgetSum()] if self.samples else []
            return [*forgotten, *self._begin(step + 1)]
        if self._has_weights:
            return []
        return [*self._applied(self.step - self._delayed), *self._began()]

    def _keep(self) -> list[PeerInstruction]:
        """Begin the next batch with what there is, which this one does not need."""
        assert self.step is not None
        self._enter(self.step + 1)
        return self._sent_or_reported(due=True)

    def _applied(self, until: int) -> list[PeerInstruction]:
        first, self.applied = self.applied, max(self.applied, min(until, self._known))
        return [ApplyAverage(step) for step in range(first, self.applied)]

    def _begin(self, step: int) -> list[PeerInstruction]:
        self._enter(step)
        self.samples = 0
        return [*self._applied(step - self._delayed), *self._began()]

    def _enter(self, step: int) -> None:
        self.step, self._stop = step, self._later.get(step)
        self._later = {later: stop for later, stop in self._later.items() if later > step}
        self._most = {later: most for later, most in self._most.items() if later >= step}
        self._waiting = self._stop == 0 and not self._delayed

    def _began(self) -> list[PeerInstruction]:
        assert self.step is not None
        if not self._has_weights:
            return []
        if self._delayed and self._stop == 0:
            return self._begin(self.step + 1)
        return [ReportProgress(self.step, 0, due=True)]

    def _sent_or_reported(self, *, due: bool) -> list[PeerInstruction]:
        assert self.step is not None
        if self._stop is None or self.samples < self._stop:
            return [ReportProgress(self.step, self.samples, due)] if self._stop is None else []
        if self._waiting:
            return []
        sent = SendContribution(self.step, self.samples)
        if self._delayed:
            return [sent, *self._begin(self.step + 1)]
        self.samples, self._waiting = 0, True
        return [sent]
