"""What is recorded of a run while it goes: metrics.jsonl, the observer's events, the logs of failed stages.

In: the stages' reports, and what the driver does. Out: progress (rates, mean losses, staleness), and the shares of
time that each stage spent on each kind of work.

The steady state of a stage lasts from its first update, when the pipeline has filled, to its last update before the run
drains. Where two updates follow the first checkpoint, it begins at the first update after that checkpoint instead,
because a checkpoint takes links for itself.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path

from ravnest.driver import control as c
from ravnest.driver.observe import report
from ravnest.driver.observe.report import MetricsWriter, TimeShares
from ravnest.pipeline.time_ledger import HANDOFF, WAITS
from ravnest.stage import messages as m
from ravnest.training.losses import Measure, Metric

PROGRESS_EVERY_S = 1.0
_PHASE_NAMES = {
    c.RunPhase.DRAINING: ("draining", "the micro-batches in flight are finished, nothing new is begun"),
    c.RunPhase.FINISHING: ("last round", "all clusters agree on the final weights"),
    c.RunPhase.EVALUATING: ("evaluating", "the final weights on the held-out set"),
    c.RunPhase.DONE: ("saving", ""),
}


@dataclass
class _ClusterTally:
    """One cluster's figures since the last progress event, and in all."""

    losses: list[float] = field(default_factory=list)
    max_staleness: int = 0
    rounds_merged: int = 0
    samples_before: int | None = None  # None before the first event: a resumed run does not begin at 0


class RunRecord:
    """Hears what happens in a run, writes it to metrics.jsonl, and tells the observer.

    Every method that takes a message or an instruction records it as of the moment that `at` or `tick` last named.
    """

    def __init__(
        self,
        out_dir: Path,
        observer: report.Observer,
        writer: MetricsWriter,
        *,
        stages: Sequence[str],
        last_stages: Mapping[str, str],
        samples_per_update: int,
        total_samples: int | None,
        metrics: Sequence[Metric],
        rounds_before: int = 0,
    ) -> None:
        """
        Arguments:
            stages: the names of all stages.
            last_stages: by name of the stages that compute the loss, their clusters.
            samples_per_update: samples that one cluster takes for one update.
            total_samples: samples of the fleet at which the job ends; None where it ends by time.
            metrics: the job's metrics, in the order in which evaluations report them.
            rounds_before: rounds of the sessions before a resume.
        """
        self.stages = tuple(stages)
        self.evaluations: list[report.EvaluatedEvent] = []
        self.checkpoint_path: Path | None = None
        self.training_s = 0.0
        self.staleness_sum = 0
        self.staleness_count = 0
        self.staleness_max = 0
        self.staleness: dict[str, list[int]] = {}
        """By stage: how many of its gradients were 0, 1, 2… updates old."""
        self.rounds_s: list[float] = []
        """How long each round took from its opening to its commit, except the one that ends the run."""
        self.windows: dict[str, int] = {}
        """By cluster whose window was tuned: the last window."""
        self.largest_windows: dict[str, int] = {}
        """By cluster whose window was tuned: the largest that it was tuned to. The stages had to hold this one, or the
        planned one where that is larger."""
        self.splits: dict[str, bool] = {}
        """By stage that has tried to split its backward: whether it does so now."""
        self.times = StageTimes()
        self.tensor_bytes: dict[str, Mapping[str, int]] = {}
        """By stage: the most bytes that its tensors took, by part."""
        self.imitated: dict[str, m.ImitationLateness] = {}
        """By stage, where anything was imitated: how late this machine was."""
        self.drawn = False
        """Whether the run's timeline has been written."""
        self._out_dir = out_dir
        self._observer = observer
        self._writer = writer
        self._last_stages = last_stages
        self._samples_per_update = samples_per_update
        self._total_samples = total_samples
        self._metrics = metrics
        self._rounds_before = rounds_before
        self._tallies = {cluster: _ClusterTally(rounds_merged=rounds_before) for cluster in last_stages.values()}
        self._next_progress_s = 0.0
        self._progress_at_s: float | None = None
        self._now_s = 0.0
        self._ended = False
        self._opened_s: dict[int, float] = {}
        self._last_round: int | None = None

    def at(self, elapsed_s: float) -> None:
        """What is recorded from now on happened at this moment, in seconds since training began."""
        self._now_s = elapsed_s

    def started(self, stage: str, message: m.StageStarted) -> None:
        """A stage has its weights and its data, and waits for the others."""
        cluster, _, index = stage.rpartition(".s")
        self._writer.write("stage", self._now_s, cluster=cluster, stage=int(index), process_bytes=message.process_bytes)

    def training(self) -> None:
        """All stages have started, and training begins."""
        self._emit(report.PhaseEvent("training"))

    def phase(self, phase: c.RunPhase) -> None:
        """The run has entered another phase."""
        if phase is c.RunPhase.DRAINING:
            self.times.draining()
        name, detail = _PHASE_NAMES[phase]
        self._emit(report.PhaseEvent(name, detail))

    def stopping(self) -> None:
        """The user has asked for an end."""
        self._emit(report.NoticeEvent("stopping with a checkpoint; Ctrl-C once more ends it at once"))

    def updated(self, stage: str, message: m.Updated) -> None:
        """A stage has made an update: the staleness of its gradients, and from a last stage the losses."""
        self.times.told(stage, message.spent, message.update)
        cluster, _, index = stage.rpartition(".s")
        tally = self._tallies[cluster]
        tally.max_staleness = max(tally.max_staleness, *message.staleness, 0)
        self.staleness_max = max(self.staleness_max, *message.staleness, 0)
        self.staleness_sum += sum(message.staleness)
        self.staleness_count += len(message.staleness)
        counts = self.staleness.setdefault(stage, [])
        for each in message.staleness:
            counts += [0] * (each + 1 - len(counts))
            counts[each] += 1
        fields: dict[str, object] = {
            "cluster": cluster,
            "stage": int(index),
            "update": message.update,
            "staleness": list(message.staleness),
            "lr": message.lr,
        }
        if stage in self._last_stages:
            tally.losses += message.losses
            fields["loss"] = sum(message.losses) / len(message.losses)
            fields["samples"] = (message.update + 1) * self._samples_per_update
        self._writer.write("update", self._now_s, **fields)

    def held(self, stage: str, message: m.MemoryPeaks) -> None:
        """The tensors of a stage take more memory than ever before."""
        self.tensor_bytes[stage] = message.tensor_bytes
        cluster, _, index = stage.rpartition(".s")
        self._writer.write("memory", self._now_s, cluster=cluster, stage=int(index), tensor_bytes=message.tensor_bytes)

    def finished(self, stage: str, message: m.RoundsFinished) -> None:
        """A stage has merged all rounds that it was told to finish."""
        self.times.told(stage, message.spent)

    def merged(self, stage: str, message: m.RoundMerged) -> None:
        """A stage has merged a round."""
        cluster = self._last_stages.get(stage)
        if cluster is not None:
            self._tallies[cluster].rounds_merged = self._rounds_before + message.round

    def window_tuned(self, stage: str, message: m.WindowTuned) -> None:
        """A first stage has given its cluster another window."""
        cluster, _, _ = stage.rpartition(".s")
        self.windows[cluster] = message.window
        self.largest_windows[cluster] = max(self.largest_windows.get(cluster, 0), message.window)
        fields = {"window": message.window, "round_trip_s": message.round_trip_s, "pace_s": message.pace_s}
        self._writer.write("window", self._now_s, cluster=cluster, **fields)

    def backward_split(self, stage: str, message: m.BackwardSplit) -> None:
        """A stage has decided whether it splits its backward, and tells the times that it measured."""
        cluster, _, index = stage.rpartition(".s")
        self.splits[stage] = message.splits
        fields: dict[str, object] = {"cluster": cluster, "stage": int(index), "splits": message.splits}
        if message.refused:
            fields["refused"] = message.refused
        else:
            fields |= {key: getattr(message, key) for key in ("whole_s", "input_s", "weight_s", "period_s")}
        self._writer.write("split", self._now_s, **fields)

    def round_opened(self, opened: c.RecordRoundOpened) -> None:
        """A round has been opened."""
        self._opened_s[opened.round] = self._now_s
        if opened.final:
            self._last_round = opened.round

    def round_committed(self, done: c.RecordRoundCommitted) -> None:
        """A round has been committed."""
        opened_s = self._opened_s.pop(done.round, None)
        seconds = None if opened_s is None else self._now_s - opened_s
        if seconds is not None and done.round != self._last_round:
            self.rounds_s.append(seconds)
        self._emit(report.RoundCommittedEvent(self._rounds_before + done.round, done.samples, seconds))

    def checkpoint(self, path: Path, round_: int) -> None:
        """The checkpoint of a round is complete on disk."""
        self.checkpoint_path = path
        self.times.saved()
        self._emit(report.CheckpointWrittenEvent(path, self._rounds_before + round_))

    def evaluated(self, done: c.RecordEvaluation) -> None:
        """The held-out set has passed through the stages."""
        loss = Measure(*done.evaluated.loss).mean
        metrics = {
            metric.name: metric.finish(Measure(*sums).mean)
            for metric, sums in zip(self._metrics, done.evaluated.metrics, strict=True)
        }
        event = report.EvaluatedEvent(done.samples, loss, metrics, done.final)
        self.evaluations.append(event)
        self._emit(event)

    def tick(self, control: c.RunControl, elapsed_s: float) -> None:
        """Tell the progress, once a second and at the end. `elapsed_s` counts from the beginning of training."""
        self._now_s = elapsed_s
        self.training_s = elapsed_s
        done = control.phase is c.RunPhase.DONE
        if self._ended or (elapsed_s < self._next_progress_s and not done):
            return
        self._ended = done
        before_s = self._progress_at_s
        span_s = elapsed_s - before_s if before_s is not None else 0.0
        self._next_progress_s, self._progress_at_s = elapsed_s + PROGRESS_EVERY_S, elapsed_s
        clusters = tuple(self._progress_of(name, updates, span_s) for name, updates in control.updates.items())
        if before_s is not None:  # the first time, no rates are known yet
            self._emit(report.ProgressEvent(elapsed_s, control.samples, self._total_samples, clusters))
        shares = {stage: asdict(each) for stage, each in self.times.since_last(self.stages).items()}
        if shares:
            self._writer.write("time", self._now_s, stages=shares)

    def timeline(self, dropped: int) -> None:
        """The timeline has been written, without `dropped` spans that were beyond its limit."""
        self.drawn = True
        if dropped:
            text = f"trace.json holds the beginning of the run: {dropped:,} spans were beyond its limit"
            self._emit(report.NoticeEvent(text))

    def write_log(self, stage: str, text: str) -> Path:
        """Write the traceback of a failed stage to a file, and return its path."""
        folder = self._out_dir / "logs"
        folder.mkdir(parents=True, exist_ok=True)
        path = folder / f"{stage}.log"
        path.write_text(text)
        return path

    def _progress_of(self, name: str, updates: int, span_s: float) -> report.ClusterProgress:
        tally = self._tallies[name]
        samples = updates * self._samples_per_update
        before = samples if tally.samples_before is None else tally.samples_before
        rate = (samples - before) / span_s if span_s > 0 else 0.0
        tally.samples_before = samples
        loss = sum(tally.losses) / len(tally.losses) if tally.losses else None
        tally.losses = []
        return report.ClusterProgress(name, samples, rate, loss, tally.max_staleness, updates, tally.rounds_merged)

    def _emit(self, event: report.RunEvent) -> None:
        self._writer.write(report.kind_of(event), self._now_s, **report.as_plain(event))
        self._observer.on(event)


_DIGITS = 5

Spent = Mapping[str, float]
"""A stage's ledger: seconds by state since the stage began."""


class StageTimes:
    """Where the time of the stages went, as shares, from the ledgers that they report."""

    def __init__(self) -> None:
        self._first: dict[str, Spent] = {}
        self._filled: dict[str, Spent] = {}
        self._updates: dict[str, list[int]] = {}
        """By stage: the numbers of the updates with which the steady state begins (at the start, and after the first
        checkpoint), and of the last update in it."""
        self._latest: dict[str, Spent] = {}
        self._steady: dict[str, Spent] = {}
        self._shown: dict[str, Spent] = {}
        self._saved = False
        self._draining = False

    def told(self, stage: str, spent: Spent, update: int | None = None) -> None:
        """Take a stage's ledger as of now, with the number of the update that it has just made."""
        self._latest[stage] = spent
        if self._draining:
            return
        self._steady[stage] = spent
        if stage not in self._first:
            self._first[stage] = spent
            self._updates[stage] = [update or 0] * 3
        if self._saved and stage not in self._filled:
            self._updates[stage][1] = update or 0
            self._filled[stage] = spent
        self._updates[stage][2] = update or 0

    def saved(self) -> None:
        """A checkpoint has been written. The update that was under way meanwhile shared its links with state that is
        sent once, so the steady state begins at the end of that update."""
        self._saved = True

    def draining(self) -> None:
        """The run drains: the steady state has ended."""
        self._draining = True

    def steady(self, stage: str) -> TimeShares | None:
        """A stage's shares in the steady state; None where it made no second update before the drain."""
        until, first = self._steady.get(stage, {}), self._first.get(stage, {})
        return (_shares(until, self._filled[stage]) if self._went_on(stage) else None) or _shares(until, first)

    def update_s(self, stage: str) -> float | None:
        """Seconds from one update to the next in the steady state, by the stage's own clock. None as for `steady`."""
        shares = self.steady(stage)
        if shares is None:
            return None
        first, filled, last = self._updates[stage]
        made = last - (filled if self._went_on(stage) else first)
        return shares.seconds / made if made > 0 else None

    def _went_on(self, stage: str) -> bool:
        """Whether the stage has made two updates after the first checkpoint."""
        return stage in self._filled and self._updates[stage][2] > self._updates[stage][1]

    def overall(self, stage: str) -> TimeShares | None:
        """A stage's shares from its start to its last report; None where it has reported nothing."""
        return _shares(self._latest.get(stage, {}), {})

    def since_last(self, stages: Iterable[str]) -> dict[str, TimeShares]:
        """By stage that has reported since the last call: its shares since then."""
        news = {}
        for stage in stages:
            latest = self._latest.get(stage, {})
            shares = _shares(latest, self._shown.get(stage, {}))
            self._shown[stage] = latest
            if shares is not None:
                news[stage] = shares
        return news


def _shares(until: Spent, since: Spent) -> TimeShares | None:
    # Until a first stage may begin, and until another stage has got its first message, it is not part of the pipeline.
    seconds = {state: until[state] - since.get(state, 0.0) for state in until if state != "start"}
    total_s = sum(seconds.values())
    if total_s <= 0:
        return None
    share = {state: round(spent_s / total_s, _DIGITS) for state, spent_s in seconds.items()}
    forward, backward, update = (share.get(state, 0.0) for state in ("forward", "backward", "update"))
    backward += share.get("weights", 0.0)  # the second part of split ones
    waiting = {cause: share[cause] for cause in WAITS if share.get(cause, 0.0) > 0}
    return TimeShares(
        seconds=round(total_s, _DIGITS),
        compute=forward + backward + update,
        forward=forward,
        backward=backward,
        update=update,
        averaging=share.get("snapshot", 0.0) + share.get("merge", 0.0),
        evaluation=share.get("evaluation", 0.0),
        handoff=share.get(HANDOFF, 0.0),
        bubble=sum(waiting.values(), 0.0),
        waiting=waiting,
    )
