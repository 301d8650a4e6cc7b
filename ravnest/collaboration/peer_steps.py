"""What a volunteer does with a step: when it computes, when it sends what it has, and when it applies. Sans-I/O.

In: what came from the backbone and what was computed, in the order of events. Out: instructions. A volunteer holds the
weights of one step at a time. It computes until it is told at how many samples to stop, sends what it has then, and
waits for the average, or to be told to go on. Averages come in order; each makes the next step. Where steps are short
it may be told at how many samples to stop before the average has come with which that step begins.
"""

from dataclasses import dataclass


@dataclass(frozen=True)
class StateCame:
    """The weights and the optimizer's state of `step` are loaded."""

    step: int


@dataclass(frozen=True)
class MicroBatchMade:
    """A micro-batch's gradient is there, by the weights of `step`. It counts only where `CountMicroBatch` follows."""

    step: int
    samples: int


@dataclass(frozen=True)
class StepOpened:
    """The backbone wants what there is as soon as it is `stop` samples."""

    step: int
    stop: int


@dataclass(frozen=True)
class CollectingWentOn:
    """Too little has come to the backbone: the same step goes on."""

    step: int


@dataclass(frozen=True)
class AverageCame:
    """The average of `step` has come whole."""

    step: int


PeerEvent = StateCame | MicroBatchMade | StepOpened | CollectingWentOn | AverageCame


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
class ApplyAverage:
    """Apply the average, forget the sum, and begin the step after `step`."""

    step: int


PeerInstruction = CountMicroBatch | ReportProgress | SendContribution | ApplyAverage


class PeerSteps:
    """Owns the number of a volunteer's step and the samples of its sum."""

    def __init__(self) -> None:
        self.step: int | None = None
        """None before the first state has come."""
        self.samples = 0
        self._stop: int | None = None
        self._later: dict[int, int] = {}  # by step: where to stop in steps whose weights have not come yet
        self._waiting = False

    @property
    def computes(self) -> bool:
        """Whether there is a micro-batch to be made."""
        return self.step is not None and not self._waiting

    def handle(self, event: PeerEvent) -> list[PeerInstruction]:
        """Return what follows from an event. What is about another step than its own changes nothing."""
        match event:
            case StateCame(step=step):
                return self._begin(step)
            case MicroBatchMade(step=step, samples=samples) if self.computes and step == self.step:
                self.samples += samples
                return [CountMicroBatch(), *self._sent_or_reported(due=False)]
            case StepOpened(step=step, stop=stop) if self.step is not None and step > self.step:
                self._later[step] = stop
            case StepOpened(step=step, stop=stop) if step == self.step:
                self._stop = stop
                if not self.samples and not stop:
                    self._waiting = True
                return self._sent_or_reported(due=False) if self.samples else []
            case CollectingWentOn(step=step) if step != self.step:
                self._later.pop(step, None)
            case CollectingWentOn(step=step):
                self._stop, self._waiting = None, False
                return [ReportProgress(step, self.samples, due=True)]
            case AverageCame(step=step) if step == self.step:
                return [ApplyAverage(step), *self._begin(step + 1)]
        return []

    def _begin(self, step: int) -> list[PeerInstruction]:
        self.step, self.samples, self._stop = step, 0, self._later.get(step)
        self._later = {later: stop for later, stop in self._later.items() if later > step}
        self._waiting = self._stop == 0
        return [ReportProgress(step, 0, due=True)]

    def _sent_or_reported(self, *, due: bool) -> list[PeerInstruction]:
        assert self.step is not None
        if self._stop is None or self.samples < self._stop:
            return [ReportProgress(self.step, self.samples, due)] if self._stop is None else []
        if self._waiting:
            return []
        samples, self.samples, self._waiting = self.samples, 0, True
        return [SendContribution(self.step, samples)]
