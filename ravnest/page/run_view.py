"""What a page shows of a run, made from the lines of its metrics.jsonl. Pure.

In: the plan, the records of metrics.jsonl one after another, and what only a folder tells (state, summary, ages). Out:
one document of plain data, and the curves. What a record says that does not fit is left out.

Seconds are those of training, over all sessions of a run that was resumed.
"""

from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from cluster_planner import Plan
from ravnest.driver.observe import report
from ravnest.driver.observe.metrics_file import event_of
from ravnest.driver.observe.place_events import ClusterReplannedEvent, NodeJoinedEvent, NodesSharedOutEvent
from ravnest.errors import InvalidInput
from ravnest.formatting import json_value
from ravnest.page.event_view import event_row, named
from ravnest.page.expert_view import ExpertViews
from ravnest.page.link_view import LinkViews
from ravnest.page.plan_facts import StageFacts, predictions_of, stages_of
from ravnest.page.run_curves import RunCurves
from ravnest.page.stage_view import StageView, number
from ravnest.pipeline import stage_name

Words = Callable[[report.RunEvent], str | None]
"""The sentence for an event; None for one that is shown otherwise."""
MOST_EVENTS = 200
MOST_LINKS = 12
"""So many links are in the document, the worst ones."""


@dataclass
class _Cluster:
    planned_window: int | None
    """None, as what follows, of a cluster that was made during the run."""
    planned_samples_per_s: float | None
    stages: list[StageView]
    largest_window: int
    window: int | None = None
    progress: report.ClusterProgress | None = None
    loss: float | None = None
    state: str = "trains"
    reason: str | None = None
    since_s: float | None = None
    round_trip_s: float | None = None
    """Without waiting for stages, as its first stage measured it when it last changed the window."""
    planned_round_trip_s: float | None = None


class RunView:
    """Everything that a page shows of one run."""

    def __init__(self, plan: Plan, words: Words) -> None:
        self._words = words
        self._plan = predictions_of(plan)
        facts = stages_of(plan)
        self._clusters = {
            cluster.name: _Cluster(
                cluster.window,
                predicted.samples_per_s,
                [
                    StageView(each, each.node, each.units, each.tensor_bytes(cluster.window))
                    for each in facts[cluster.name]
                ],
                cluster.window,
                planned_round_trip_s=predicted.round_trip_s,
            )
            for cluster, predicted in zip(plan.clusters, plan.predicted.clusters, strict=True)
        }
        self._stages = {stage.facts.stage: stage for each in self._clusters.values() for stage in each.stages}
        self._cut_as_planned = True
        """Whether all clusters are those of the plan with its cuts, so that what a round brings is as planned."""
        self._links, self._experts = LinkViews(plan, self._node_of), ExpertViews()
        self._events: deque[dict[str, object]] = deque(maxlen=MOST_EVENTS)
        self._spares = [{"node": spare.node, "reason": spare.reason} for spare in plan.spares]
        self._joined: dict[str, str] = {}
        """The nodes that the plan lacks and that have come to the run, and how."""
        self._curves = RunCurves(list(self._clusters))
        self._progress: report.ProgressEvent | None = None
        self._phase: report.PhaseEvent | None = None
        self._round: tuple[float, report.RoundCommittedEvent] | None = None
        """When the last round was committed, and what was told of it."""
        self._checkpoint: tuple[str, int, float] | None = None
        self._session_s = self._before_s = 0.0
        self._baselines: dict[str, float] = {}
        self.end: report.FailedEvent | None = None
        """Why the run has ended, where that is the last that was told of it."""
        self._begun = False
        """Whether the session that the last record is of trains, or has trained."""
        self.damaged = 0
        """How many lines said what no run says."""

    @property
    def at_s(self) -> float:
        """The moment of the last record, in seconds of training."""
        return self._before_s + self._session_s

    @property
    def phase(self) -> str | None:
        """The phase that the run was last in."""
        return None if self._phase is None else self._phase.name

    def take(self, record: Mapping[str, object]) -> None:
        """Take the next record, as `record_of` gives it."""
        at_s = number(record.get("at_s")) or 0.0
        if at_s < self._session_s - 1.0:  # another session
            self._before_s += self._session_s
            self._begin_anew()
        self._session_s = at_s
        match record["kind"]:
            case "update":
                self._updated(record)
            case "time":
                self._timed(record)
            case "memory" | "stage" | "split" | "window":
                self._measured(record)
            case "links":
                self._links.take(record)
            case "experts":
                self._experts.take(record)
            case "past":
                self._passed(record)
            case "baselines":
                self._compared_with(record)
            case kind:
                try:
                    event = event_of(record)
                except InvalidInput:
                    self.damaged += 1
                    return
                if event is not None:
                    self._happened(str(kind), event)

    def _updated(self, record: Mapping[str, object]) -> None:
        stage = self._stage(record)
        if stage is None:
            return
        stage.updated(record)
        loss = number(record.get("loss"))
        if loss is not None:
            cluster = self._clusters[str(record["cluster"])]
            cluster.loss = loss if cluster.loss is None else 0.8 * cluster.loss + 0.2 * loss
            self._curves.updated(str(record["cluster"]), self.at_s, loss, record.get("samples"))

    def _passed(self, record: Mapping[str, object]) -> None:
        """Take what history.jsonl has kept of a while of which no other record is read."""
        for name, loss in self._curves.past(record, self.at_s).items():
            if name in self._clusters:
                self._clusters[name].loss = loss
        stalest = record.get("max_staleness")
        for name, most in stalest.items() if isinstance(stalest, dict) else ():
            if name in self._stages and isinstance(most, int):
                self._stages[name].max_staleness = max(self._stages[name].max_staleness, most)

    def _timed(self, record: Mapping[str, object]) -> None:
        told = record.get("stages")
        for name, shares in told.items() if isinstance(told, dict) else ():
            if name in self._stages and isinstance(shares, dict):
                self._stages[name].timed(shares, self.at_s)

    def _measured(self, record: Mapping[str, object]) -> None:
        if record["kind"] == "window":
            cluster, window = self._clusters.get(str(record.get("cluster"))), record.get("window")
            if cluster is not None and isinstance(window, int):
                cluster.window = window
                cluster.round_trip_s = number(record.get("round_trip_s"))
                if window > cluster.largest_window:
                    cluster.largest_window = window
                    for each in cluster.stages:
                        each.planned_bytes = each.facts.tensor_bytes(window) if each.planned_bytes else None
            return
        stage = self._stage(record)
        if stage is not None:
            stage.measured(record)

    def _compared_with(self, record: Mapping[str, object]) -> None:
        told = record.get("losses")
        known = {str(name): number(loss) for name, loss in told.items()} if isinstance(told, dict) else {}
        self._baselines = {name: loss for name, loss in known.items() if loss is not None}

    def _node_of(self, stage: str) -> str | None:
        return self._stages[stage].node if stage in self._stages else None

    def _stage(self, record: Mapping[str, object]) -> StageView | None:
        index = record.get("stage")
        return self._stages.get(stage_name(str(record.get("cluster")), index)) if isinstance(index, int) else None

    def _happened(self, kind: str, event: report.RunEvent) -> None:
        self.end = None
        match event:
            case report.FailedEvent():
                self.end = event
            case report.PhaseEvent():
                self._phase, self._begun = event, True
            case report.ProgressEvent():
                self._progressed(event)
                return
            case report.RoundCommittedEvent():
                self._round = self.at_s, event
                for name, stage in self._stages.items():
                    stage.round_bytes = event.received.get(name)
                if event.seconds is not None:
                    self._curves.round_took(self.at_s, event.seconds)
            case report.EvaluatedEvent():
                self._curves.evaluated(event, self.at_s)
            case report.CheckpointWrittenEvent():
                self._checkpoint = (event.path.name, event.round, self.at_s)
            case report.ClusterLostEvent():
                self._set_state(event.cluster, "left" if event.with_notice else "lost", event.reason)
            case report.ReplacementFailedEvent(again_s=None):
                self._set_state(event.cluster, "out", event.reason)
            case report.ReplacementFailedEvent():
                self._set_state(event.cluster, "lost", event.reason)
            case ClusterReplannedEvent():
                self._placed(event.cluster, event.nodes, event.units)
                self._set_state(event.cluster, "starts", event.reason)
            case NodeJoinedEvent(known=False):
                self._joined[event.node] = "has joined the run"
            case NodesSharedOutEvent():
                self._set_state(event.cluster, "lost", event.reason)
            case report.ClusterReplacedEvent():
                self._placed(event.cluster, event.nodes, {})
                self._set_state(event.cluster, "trains", None)
            case report.RestartedEvent():
                self._begin_anew()
        text = self._words(event)
        if text is not None:
            self._events.append(event_row(kind, event, text, self.at_s))

    def _progressed(self, event: report.ProgressEvent) -> None:
        self._progress, self._begun = event, True
        self._curves.progressed(event, self.at_s)
        for each in event.clusters:
            if each.name in self._clusters:
                self._clusters[each.name].progress = each

    def _begin_anew(self) -> None:
        self._begun = False
        self._curves.begin_anew()
        for name in self._clusters:
            self._set_state(name, "trains", None)

    def _set_state(self, cluster: str, state: str, reason: str | None) -> None:
        if cluster in self._clusters:
            found = self._clusters[cluster]
            found.state, found.reason, found.since_s = state, reason, self.at_s

    def _placed(self, cluster: str, nodes: Mapping[str, str], units: Mapping[str, tuple[int, int]]) -> None:
        """The cluster has these stages now: on other nodes, and, where it was cut anew, others than it had. One that
        is not known was made during the run."""
        found = self._clusters.setdefault(cluster, _Cluster(None, None, [], 1))
        before = {stage.facts.stage: stage for stage in found.stages}
        for name in before:
            self._stages.pop(name, None)
        found.stages = []
        for name, node in nodes.items():
            last = before.get(name)
            facts = StageFacts(name, node, (0, 0), lambda window: 0, 0) if last is None else last.facts
            held = units.get(name, facts.units if last is None else last.units)
            self._cut_as_planned &= last is not None and held == facts.units
            bytes_ = facts.tensor_bytes(found.largest_window) if held == facts.units and last is not None else None
            stage = StageView(facts, node, held, bytes_)
            found.stages.append(stage)
            self._stages[name] = stage

    def document(
        self, *, state: str, now_s: float, name: str, outcome: Mapping[str, object], new: bool = False
    ) -> dict[str, object]:
        """What the page shows, but for the curves. `state`: of the run's folder; `now_s`: the moment in seconds of
        training; `outcome`: the run's summary, empty while it has none; `new`: its process has told nothing yet."""
        runs = state in ("running", "unknown")
        starts = runs and (new or not self._begun or self.end is not None)
        phase = report.PhaseEvent("starting") if starts else self._phase
        whole = "ended" if not runs else "starts" if starts else None
        clusters = [self._cluster_document(each, found, now_s, whole) for each, found in self._clusters.items()]
        progress = self._progress
        used = {stage.node: stage.facts.stage for each in self._clusters.values() for stage in each.stages}
        joined = [{"node": node, "reason": how} for node, how in self._joined.items()]
        plain = {
            "version": 1,
            "run": {
                "name": name,
                "state": state,
                "phase": None if phase is None else phase.name,
                "phase_detail": None if phase is None else phase.detail or None,
                "at_s": self.at_s,
                "now_s": now_s,
                "damaged_lines": self.damaged,
                "failure": self.end.reason if self.end is not None and state == "failed" else None,
            },
            "progress": None
            if progress is None
            else {
                "samples": progress.samples,
                "total_samples": progress.total_samples,
                "elapsed_s": progress.elapsed_s,
                "stop_s": progress.stop_s,
                "left_s": _left_s(progress) if runs else None,
                "samples_per_s": sum(each.samples_per_s for each in progress.clusters),
                "loss": _mean([each.loss for each in self._clusters.values()]),
            },
            **self._plan,
            "spares": [{**each, "runs": used.get(each["node"])} for each in (*self._spares, *joined)],
            "clusters": clusters,
            "rounds": self._round_document(now_s),
            "links": self._links.rows()[:MOST_LINKS],
            "experts": self._experts.rows(),
            "checkpoint": None
            if self._checkpoint is None
            else {
                "name": self._checkpoint[0],
                "round": self._checkpoint[1],
                "age_s": max(0.0, now_s - self._checkpoint[2]),
            },
            "held_out": self._curves.held_out,
            "baselines": outcome.get("baselines", self._baselines),
            "events": [named(each, name) for each in self._events],
        }
        found = json_value(plain)
        return found if isinstance(found, dict) else {}

    def _round_document(self, now_s: float) -> dict[str, object] | None:
        if self._round is None:
            return None
        at_s, last = self._round
        hop, planned = last.slowest_hop, sum(each.facts.round_bytes for each in self._stages.values())
        return {
            "committed": last.round,
            "age_s": max(0.0, now_s - at_s),
            "seconds": last.seconds,
            "samples_since": max(0, self._curves.samples - last.samples),
            "bytes": sum(last.received.values()) if last.received else None,
            "planned_bytes": planned if self._cut_as_planned else None,
            "slowest_hop": None if hop is None else self._links.row(hop.sender, hop.receiver, hop.bytes_per_s),
        }

    def links(self) -> list[object]:
        """All links that were heard of, as the rows of ravnest/page/link_view.py, the worst first."""
        found = json_value(self._links.rows())
        return found if isinstance(found, list) else []

    def _cluster_document(self, name: str, found: _Cluster, now_s: float, whole: str | None) -> dict[str, object]:
        progress = found.progress
        committed = 0 if self._round is None else self._round[1].round
        ends = found.state == "trains" and self.phase not in (None, "training")
        cluster = whole or ("ends" if ends else found.state)
        return {
            "cluster": name,
            "state": cluster,
            "reason": found.reason,
            "state_s": None if found.since_s is None else max(0.0, now_s - found.since_s),
            "samples": 0 if progress is None else progress.samples,
            "samples_per_s": 0.0 if progress is None or found.state != "trains" else progress.samples_per_s,
            "predicted_samples_per_s": found.planned_samples_per_s,
            "loss": found.loss,
            "updates": 0 if progress is None else progress.updates,
            "rounds_merged": 0 if progress is None else progress.rounds_merged,
            "lag": None if progress is None else max(0, committed - progress.rounds_merged),
            "window": found.window or found.planned_window,
            "planned_window": found.planned_window,
            "round_trip_s": found.round_trip_s,
            "planned_round_trip_s": found.planned_round_trip_s,
            "max_staleness": max([stage.max_staleness for stage in found.stages], default=0),
            "stages": [
                each.document(each.state(cluster, now_s), as_planned=self._cut_as_planned) for each in found.stages
            ],
        }

    def curves(self) -> dict[str, object]:
        """The curves, as ravnest/page/run_curves.py has them."""
        return self._curves.document(list(self._clusters))


def _left_s(progress: report.ProgressEvent) -> float | None:
    """Seconds to the end at the present rates; None where nobody can say."""
    ends = [] if progress.stop_s is None else [max(progress.stop_s - progress.elapsed_s, 0.0)]
    rate = sum(each.samples_per_s for each in progress.clusters)
    if progress.total_samples is not None and rate > 0:
        ends.append(max(progress.total_samples - progress.samples, 0) / rate)
    return min(ends, default=None)


def _mean(values: Sequence[float | None]) -> float | None:
    known = [each for each in values if each is not None]
    return sum(known) / len(known) if known else None
