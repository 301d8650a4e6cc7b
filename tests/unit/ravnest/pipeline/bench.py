"""One machine on a bench: events in, one trace string out."""

from ravnest.pipeline import Event, StageMachine, StageShape, format_trace
from ravnest.pipeline import events as ev
from ravnest.pipeline import instructions as ins

FINISHED = {
    ins.RunForward: lambda i, norm: ev.ForwardFinished(i.micro_batch),
    ins.RunBackward: lambda i, norm: ev.BackwardFinished(i.micro_batch, norm),
    ins.RunInputGradients: lambda i, norm: ev.InputGradientsFinished(i.micro_batch),
    ins.RunWeightGradients: lambda i, norm: ev.WeightGradientsFinished(i.micro_batch),
    ins.RunUpdate: lambda i, norm: ev.UpdateFinished(i.update),
    ins.TakeSnapshot: lambda i, norm: ev.ContributionFinished(i.round),
    ins.ApplyMerge: lambda i, norm: ev.MergeFinished(i.round),
    ins.RunEvaluation: lambda i, norm: ev.EvaluationForwardFinished(i.evaluation, i.batch),
}


class Bench:
    """One machine on a bench: `tell` it events, `work` off what it computes, read what it answers as a trace."""

    def __init__(self, stages: int, index: int, **shape: int | bool) -> None:
        bounds = {"update_every": 2, "max_staleness": 1, "window": 4, "max_lag": 1, **shape}
        self.machine = StageMachine(StageShape(stages, index, **bounds))
        self.now_s = 0.0
        self.tell(ev.Started())

    def tell(self, *events: Event) -> str:
        answers = []
        for event in events:
            answers += self.machine.handle(event, self.now_s)
            self.machine.check()
        return format_trace(answers)

    def work(self, steps: int = 1000, norm_sq: float | None = None) -> str:
        """Finish up to `steps` computations, one after the other; `norm_sq` goes with the ends of groups."""
        answers = []
        for _ in range(steps):
            running = self.machine.running
            if running is None:
                break
            ends = isinstance(running, ins.RunBackward) and self.machine.shape.ends_group(running.micro_batch)
            answers.append(self.tell(FINISHED[type(running)](running, norm_sq if ends else None)))
        return " ".join(filter(None, answers))


def activations(*micro_batches: int) -> list[Event]:
    return [ev.ActivationArrived(m) for m in micro_batches]


def gradients(*micro_batches: int) -> list[Event]:
    return [ev.GradientArrived(m) for m in micro_batches]
