"""What is recorded of a run while it goes: metrics.jsonl, the observer's events, the logs of failed stages.

In: the stages' reports, and what the driver does. Out: progress (rates, mean losses, staleness). The shares of time
that each stage spent on each kind of work are kept in stage_times.py.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path

from cluster_planner import Plan
from ravnest.driver import control as c
from ravnest.driver import instructions as ins
from ravnest.driver.observe import report
from ravnest.driver.observe.expert_figures import ExpertFigures
from ravnest.driver.observe.link_figures import LinkFigures
from ravnest.driver.observe.metrics_file import MetricsWriter
from ravnest.driver.observe.recent_rate import RecentRate
from ravnest.driver.observe.stage_times import StageTimes
from ravnest.driver.stage_watch import Suspicion
from ravnest.driver.standing import Standing
from ravnest.errors import WrongMessage
from ravnest.pipeline import stage_place
from ravnest.recovery import Replaced, Restored, TryFailed
from ravnest.stage import messages as m
from ravnest.stage.expert_reports import ExpertsAsked
from ravnest.training.losses import Metric
from ravnest.training.named_measures import Measure
from ring_allreduce.transport import Message, strangers_in_words

PROGRESS_EVERY_S = 1.0
_PHASE_NAMES = {
    ins.RunPhase.DRAINING: ("draining", "the micro-batches in flight are finished, nothing new is begun"),
    ins.RunPhase.FINISHING: ("last round", "all clusters agree on the final weights"),
    ins.RunPhase.EVALUATING: ("evaluating", "the final weights on the held-out set"),
    ins.RunPhase.DONE: ("saving", ""),
}


@dataclass
class _ClusterTally:
    """One cluster's figures since the last progress event, and in all."""

    losses: list[float] = field(default_factory=list)
    max_staleness: int = 0
    rounds_merged: int = 0
    rate: RecentRate = field(default_factory=RecentRate)


class RunRecord:
    """Hears what happens in a run, writes it to metrics.jsonl, and tells the observer. Whatever takes a message or an
    instruction records it as of the moment that `at` or `tick` last named."""

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
        stop_s: float | None = None,
        metrics: Sequence[Metric],
        rounds_before: int = 0,
    ) -> None:
        """
        Arguments:
            stages: the names of all stages.
            last_stages: by name of the stages that compute the loss, their clusters.
            samples_per_update: samples that one cluster takes for one update.
            total_samples: samples of the fleet at which this run ends; None where it ends by time alone.
            stop_s: seconds of training after which this run ends at the latest; None where time does not end it.
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
        """The same of the largest that it was tuned to: stages had to hold it, or the planned one if larger."""
        self.splits: dict[str, bool] = {}
        """By stage that has tried to split its backward: whether it does so now."""
        self.times = StageTimes()
        self._links, self._experts = LinkFigures(), ExpertFigures()
        self.tensor_bytes: dict[str, Mapping[str, int]] = {}  # by stage: the most that its tensors took, by part
        self.imitated: dict[str, m.ImitationLateness] = {}
        """By stage, where anything was imitated: how late this machine was."""
        self.plan: Plan | None = None
        """The plan with the stages as they were last; None where they are those of the beginning."""
        self.drawn = False  # whether the run's timeline has been written
        self.refused = False  # whether the disk has refused the newest checkpoint
        self._out_dir = out_dir
        self._observer = observer
        self._writer = writer
        self._last_stages = dict(last_stages)
        self._samples_per_update = samples_per_update
        self._total_samples = total_samples
        self._stop_s = stop_s
        self._metrics = metrics
        self._rounds_before = rounds_before
        self._tallies = {cluster: _ClusterTally(rounds_merged=rounds_before) for cluster in last_stages.values()}
        self._began = self._ended = False
        self._now_s = self._next_progress_s = 0.0
        self._opened_s: dict[int, float] = {}
        self._last_round: int | None = None
        self._lost, self._told_lost = 0, False

    def at(self, elapsed_s: float) -> None:
        """What is recorded from now on happened at this moment, in seconds since training began."""
        self._now_s = elapsed_s

    def started(self, stage: str, message: m.StageStarted) -> None:
        """A stage has its weights and its data, and waits for the others."""
        cluster, index = stage_place(stage)
        self._writer.write("stage", self._now_s, cluster=cluster, stage=index, process_bytes=message.process_bytes)

    def training(self) -> None:
        """All stages have started, and training begins."""
        self._emit(report.PhaseEvent("training"))

    def taken_over(self, standing: Standing) -> None:
        """The session of another driver goes on with this one."""
        self.at(standing.elapsed_s)
        made = sum(standing.updates.values()) - sum(standing.unmade.values())
        missing, committed = (*standing.away, *standing.missing), self._rounds_before + standing.committed
        what = missing, committed, made * self._samples_per_update, standing.elapsed_s
        self._emit(report.TakenOverEvent(tuple(standing.whole), *what))
        self._emit(report.PhaseEvent("training"))

    def phase(self, phase: ins.RunPhase) -> None:
        """The run has entered another phase."""
        if phase is ins.RunPhase.DRAINING:
            self.times.draining()
        name, detail = _PHASE_NAMES[phase]
        self._emit(report.PhaseEvent(name, detail))

    def stopping(self) -> None:
        """The user has asked for an end."""
        self._emit(report.NoticeEvent("stopping with a checkpoint; Ctrl-C once more or `stop --now` ends it at once"))

    def notice(self, text: str) -> None:
        """Something has happened that the user should know of, and that does not end the run."""
        self._emit(report.NoticeEvent(text))

    def notices(self, texts: Iterable[str]) -> None:
        """Several such things have happened."""
        for text in texts:
            self.notice(text)

    def tell(self, text: str) -> None:
        """As `notice`, but not in metrics.jsonl, which may be closed or full."""
        self._observer.on(report.NoticeEvent(text))

    def updated(self, stage: str, message: m.Updated) -> None:
        """A stage has made an update: the staleness of its gradients, and from a last stage the losses. Raises
        WrongMessage for an update without a gradient, or of a last stage without a loss."""
        if not message.staleness or (stage in self._last_stages and not message.losses):
            raise WrongMessage(stage, f"sent {message}, an update of no micro-batch")
        self.times.told(stage, message.spent, message.update)
        cluster, index = stage_place(stage)
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
            "stage": index,
            "update": message.update,
            "staleness": list(message.staleness),
            "lr": message.lr,
        }
        if stage in self._last_stages:
            tally.losses += message.losses
            fields["loss"] = sum(message.losses) / len(message.losses)
            fields["samples"] = (message.update + 1) * self._samples_per_update
        self._writer.write("update", self._now_s, **fields)

    def strangers(self, where: str, connections: Mapping[str, int]) -> None:
        """The ports of a stage, or of the driver, have refused so many connections of these addresses so far."""
        if not connections:
            return
        self._writer.write("strangers", self._now_s, where=where, connections=dict(connections))
        for address, count in connections.items():
            self._emit(report.NoticeEvent(f"{where} has {strangers_in_words(address, count)}"))

    def reported(self, stage: str, message: Message) -> None:
        """Record what a stage says. Raises WrongMessage as `updated` does, and where metrics are not the job's."""
        match message:
            case m.Updated():
                self.updated(stage, message)
            case m.RoundsFinished():
                self.times.told(stage, message.spent)
            case m.StrangersRefused():
                self.strangers(stage, message.connections)
            case m.EvaluationFinished() if len(message.metrics) != len(self._metrics):
                raise WrongMessage(stage, f"sent {message}, which has not the job's {len(self._metrics)} metrics")
            case m.RoundMerged():
                self.merged(stage, message)
            case m.WindowTuned():
                self.window_tuned(stage, message)
            case m.BackwardSplit():
                self.backward_split(stage, message)
            case m.MemoryPeaks():
                self.held(stage, message)
            case m.ImitationLateness():
                self.imitated[stage] = message
            case m.LinksUsed() | m.RingFinishedMessage():
                self._links.told(stage, message, self._now_s)
            case ExpertsAsked():
                self._experts.told(stage, message)

    def held(self, stage: str, message: m.MemoryPeaks) -> None:
        """The tensors of a stage take more memory than ever before."""
        self.tensor_bytes[stage] = message.tensor_bytes
        cluster, index = stage_place(stage)
        self._writer.write("memory", self._now_s, cluster=cluster, stage=index, tensor_bytes=message.tensor_bytes)

    def merged(self, stage: str, message: m.RoundMerged) -> None:
        """A stage has merged a round."""
        if (cluster := self._last_stages.get(stage)) is not None:
            self._tallies[cluster].rounds_merged = self._rounds_before + message.round

    def window_tuned(self, stage: str, message: m.WindowTuned) -> None:
        """A first stage has given its cluster another window."""
        cluster, _ = stage_place(stage)
        self.windows[cluster] = message.window
        self.largest_windows[cluster] = max(self.largest_windows.get(cluster, 0), message.window)
        fields = {"window": message.window, "round_trip_s": message.round_trip_s, "pace_s": message.pace_s}
        self._writer.write("window", self._now_s, cluster=cluster, **fields)

    def backward_split(self, stage: str, message: m.BackwardSplit) -> None:
        """A stage has decided whether it splits its backward, and tells the times that it measured."""
        cluster, index = stage_place(stage)
        self.splits[stage] = message.splits
        fields: dict[str, object] = {"cluster": cluster, "stage": index, "splits": message.splits}
        if message.refused:
            fields["refused"] = message.refused
        else:
            fields |= {key: getattr(message, key) for key in ("whole_s", "input_s", "weight_s", "period_s")}
        self._writer.write("split", self._now_s, **fields)

    def round_opened(self, opened: ins.RecordRoundOpened) -> None:
        """A round has been opened."""
        self._opened_s[opened.round] = self._now_s
        if opened.final:
            self._last_round = opened.round

    def round_committed(self, done: ins.RecordRoundCommitted) -> None:
        """A round has been committed."""
        opened_s = self._opened_s.pop(done.round, None)
        seconds = None if opened_s is None else self._now_s - opened_s
        if seconds is not None and done.round != self._last_round:
            self.rounds_s.append(seconds)
        moved, what = self._links.committed(done.round), (self._rounds_before + done.round, done.samples, seconds)
        self._emit(report.RoundCommittedEvent(*what, moved.slowest_hop, moved.by_stage))

    def contributions(self, lines: Iterable[Mapping[str, object]]) -> None:
        """What members gave to the rings of committed rounds, where a robust average has seen it."""
        for line in lines:
            self._writer.write("contributions", self._now_s, **line)

    def suspected(self, found: Suspicion, node: str) -> None:
        """A stage on `node` has been silent for a while, or is heard again."""
        event = report.StageSuspectedEvent(found.stage, node, found.silent_s, found.deadline_s, found.heard_again)
        self._emit(event)

    def cluster_lost(self, lost: ins.RecordClusterLost, node: str, silent_s: float | None = None) -> None:
        """A cluster has left the run, with its stage on `node`, of which nothing had been heard for `silent_s`."""
        what = lost.cluster, lost.stage, node, lost.reason, lost.samples, lost.left
        self._emit(report.ClusterLostEvent(*what, with_notice=lost.with_notice, silent_s=silent_s))

    def cluster_replaced(self, replaced: Replaced, round_: int, plan: Plan) -> None:
        """A lost cluster trains again, after this round of the session; `plan` has its stages as they are now."""
        self.plan = plan
        for stage in replaced.nodes:
            self.times.begins_anew(stage)
        after = self._rounds_before + round_
        what = replaced.cluster, replaced.nodes, after, replaced.seconds, replaced.samples
        self._emit(report.ClusterReplacedEvent(*what, new=replaced.new))

    def consists_of(self, cluster: str, stages: Sequence[str]) -> None:
        """A cluster that joins has these stages, in order, which may be others than before."""
        self.stages = (*(name for name in self.stages if stage_place(name)[0] != cluster), *stages)
        self._last_stages = {name: each for name, each in self._last_stages.items() if each != cluster}
        self._last_stages[stages[-1]] = cluster
        self._tallies.setdefault(cluster, _ClusterTally(rounds_merged=self._rounds_before))

    def happened(self, event: report.RunEvent) -> None:
        """Tell of an event that stands for itself."""
        self._emit(event)

    def restored(self, restored: Restored) -> None:
        """A stage that joined holds the anchor."""
        self._emit(report.StageRestoredEvent(restored.stage, dict(restored.donors), restored.seconds))

    def replacement_failed(self, failed: TryFailed) -> None:
        """A lost cluster could not be started anew."""
        self._emit(report.ReplacementFailedEvent(failed.cluster, failed.reason, failed.again_s))

    def checkpoint(self, path: Path, round_: int) -> None:
        """The checkpoint of a round is complete on disk."""
        self.checkpoint_path, self.refused = path, False
        self.times.saved()
        self._emit(report.CheckpointWrittenEvent(path, self._rounds_before + round_))

    def checkpoint_refused(self, round_: int, reason: str) -> None:
        """The disk has refused the checkpoint of a round."""
        self.refused = True
        self._emit(report.CheckpointRefusedEvent(self._rounds_before + round_, reason))

    def evaluated(self, done: ins.RecordEvaluation) -> None:
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
        self._now_s = self.training_s = elapsed_s
        done = control.phase is ins.RunPhase.DONE
        if self._ended or (elapsed_s < self._next_progress_s and not done):
            return
        self._ended, self._next_progress_s = done, elapsed_s + PROGRESS_EVERY_S
        unmade = control.accounts.unmade
        clusters = tuple(self._progress_of(name, n - unmade.get(name, 0)) for name, n in control.updates.items())
        if self._began:  # the first time, no rates are known yet
            ends, session = (self._total_samples, clusters, self._stop_s), control.accounts.session_samples
            self._emit(report.ProgressEvent(elapsed_s, control.samples, *ends, session_samples=session))
        self._began = True
        self._tell_lost()
        if shares := {stage: asdict(each) for stage, each in self.times.since_last(self.stages).items()}:
            self._writer.write("time", self._now_s, stages=shares)
        for kind, key, news in (("links", "links", self._links), ("experts", "grids", self._experts)):
            if found := news.since_last():
                self._writer.write(kind, self._now_s, **{key: found})

    def timeline(self, dropped: int) -> None:
        """The timeline has been written, without `dropped` spans that were beyond its limit."""
        self.drawn = True
        if dropped:
            self.notice(f"trace.json holds the beginning of the run: {dropped:,} spans were beyond its limit")

    def write_log(self, stage: str, text: str) -> str:
        """Write the traceback of a failed stage to a file. Returns where it is, or why it is nowhere, in words."""
        path = self._out_dir / "logs" / f"{stage}.log"
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text, encoding="utf-8", errors="backslashreplace")
        except OSError as error:
            return f"no details: {path} cannot be written: {error.strerror or error}"
        return f"details in {path}"

    def _progress_of(self, name: str, updates: int) -> report.ClusterProgress:
        tally, samples = self._tallies[name], updates * self._samples_per_update
        rate = tally.rate.at(self._now_s, samples)
        losses, tally.losses = tally.losses, []
        loss = sum(losses) / len(losses) if losses else None
        return report.ClusterProgress(name, samples, rate, loss, tally.max_staleness, updates, tally.rounds_merged)

    def _tell_lost(self) -> None:
        """Tell the user once that metrics.jsonl cannot be written, once that it can be, and of trackers that failed."""
        lost, reason = self._writer.take_lost()
        self._lost += lost
        if reason is not None and not self._told_lost:
            self._told_lost = True
            said = f"metrics.jsonl cannot be written ({reason}): its lines are lost, and training goes on; make room"
            self.tell(said)
        elif reason is None and self._told_lost:
            self._told_lost = False
            said = f"metrics.jsonl is written again; {self._lost:,} lines were lost"
            self._lost = 0
            self.notice(said)
        for said in self._writer.take_troubles():
            self.notice(said)

    def _emit(self, event: report.RunEvent) -> None:
        self._writer.write(report.kind_of(event), self._now_s, **report.as_plain(event))
        self._observer.on(event)
