"""The curves that a page shows of a run: losses against samples and time, evaluations, rates and rounds. Pure.

In: what the records of metrics.jsonl say of them, or `past` records of history.jsonl. Out: plain data of bounded
length. What a resumed run makes anew replaces what it had made, as in `compare` and loss.png.
"""

from collections.abc import Mapping, Sequence

from ravnest.driver.observe import report
from ravnest.formatting import json_value
from ravnest.page.curves import Curve
from ravnest.page.stage_view import number

MOST_POINTS = 400
_MOST_POINTS_IN_ALL = 12_000


class RunCurves:
    """The curves of one run."""

    def __init__(self, clusters: Sequence[str]) -> None:
        """`clusters`: those of the plan."""
        self._most = max(20, min(MOST_POINTS, _MOST_POINTS_IN_ALL // max(1, len(clusters))))
        self._losses = {name: self._new() for name in clusters}
        self._held_out: list[dict[str, object]] = []
        self._rate, self._rounds_s = Curve(MOST_POINTS), Curve(MOST_POINTS)
        self.samples = 0
        """Of the fleet, as last told."""
        self._of_plan = frozenset(clusters)
        self._made: dict[str, int] = {}
        """By cluster of the plan: its samples at its last update, which say more often how far the fleet is."""
        self._counted = True
        """Whether this session has told how many samples there are: one that is resumed begins with some."""

    @property
    def held_out(self) -> dict[str, object] | None:
        """The last evaluation."""
        return self._held_out[-1] if self._held_out else None

    def begin_anew(self) -> None:
        """The run has gone back, or begins another session."""
        self._made, self._counted = {}, False

    def updated(self, cluster: str, at_s: float, loss: float, made: object) -> None:
        """A last stage has told the loss of an update, and how many samples its cluster has `made`."""
        if cluster in self._of_plan:  # of one that came they count from where its schedule begins
            self._made[cluster] = made if isinstance(made, int) else 0
        if self._counted:
            self._losses.setdefault(cluster, self._new()).add(at_s, max(self.samples, sum(self._made.values())), loss)

    def progressed(self, event: report.ProgressEvent, at_s: float) -> None:
        """The fleet has come so far."""
        self.samples, self._counted = event.samples, True
        self._rate.add(at_s, sum(each.samples_per_s for each in event.clusters))

    def past(self, record: Mapping[str, object], at_s: float) -> Mapping[str, float]:
        """Take a `past` record of history.jsonl. Returns the loss of each cluster that has told one."""
        samples, rate, losses = number(record.get("samples")), number(record.get("samples_per_s")), record.get("losses")
        if samples is None or not isinstance(losses, dict):
            return {}
        self.samples, self._counted = int(samples), True
        if rate is not None:
            self._rate.add(at_s, rate)
        known = {str(name): value for name, loss in losses.items() if (value := number(loss)) is not None}
        for name, loss in known.items():
            self._losses.setdefault(name, self._new()).add(at_s, samples, loss)
        return known

    def round_took(self, at_s: float, seconds: float) -> None:
        """A round was committed."""
        self._rounds_s.add(at_s, seconds)

    def evaluated(self, event: report.EvaluatedEvent, at_s: float) -> None:
        """The held-out set was evaluated. Evaluations after as many samples or more no longer count."""
        self._held_out = [each for each in self._held_out if (number(each["samples"]) or 0.0) < event.samples]
        point = {"at_s": at_s, "samples": event.samples, "loss": event.loss, "final": event.final}
        self._held_out.append({**point, "metrics": dict(event.metrics)})

    def document(self, clusters: Sequence[str]) -> dict[str, object]:
        """All curves as plain data; of losses those of these clusters, with at most 12,000 points in all."""
        return {
            "loss": {name: self._losses[name].points if name in self._losses else [] for name in clusters},
            "held_out": json_value(self._held_out[-MOST_POINTS:]),
            "samples_per_s": self._rate.points,
            "round_s": self._rounds_s.points,
        }

    def _new(self) -> Curve:
        return Curve(self._most, samples_at=1)
