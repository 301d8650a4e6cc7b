"""What a page shows of the links of a run: what each carries and how fast it is, beside what was planned. Pure.

In: the plan, where stages run now, and the records of kind `links` of metrics.jsonl. Out: a row of plain data for each
link that was used, the worst first. What a record says that does not fit is left out.

`planned_bytes_per_s` is what one flow may have by nodes.yaml, which the plan counts with. `hop_bytes_per_s` is how fast
a member's own part of a round came, so where it is lower the link is slower than planned, or others used it, too. What
a link carries (`pipeline_bytes_per_s`, `bulk_bytes_per_s`) tells only how much of it is used.
"""

from collections.abc import Callable, Iterable, Mapping

from cluster_planner import Plan, SpanCosts
from ravnest.errors import InvalidInput
from ravnest.page.stage_view import number
from ravnest.pipeline import stage_name

_RATES = ("pipeline_bytes_per_s", "bulk_bytes_per_s", "hop_bytes_per_s")
_MOST = 20_000
"""So many links are kept at most; a file that names more is no run's."""

Link = tuple[str, str]
"""(sender, receiver): names of stages."""


class LinkViews:
    """All links of one run that were heard of."""

    def __init__(self, plan: Plan, node_of: Callable[[str], str | None]) -> None:
        """`node_of` says on which node a stage runs now."""
        self._fleet = plan.fleet
        self._node_of = node_of
        self._planned = dict(_planned_traffic(plan))
        self._rates: dict[Link, dict[str, float]] = {}

    def take(self, record: Mapping[str, object]) -> None:
        """Take a record of kind `links`."""
        rows = record.get("links")
        for row in rows if isinstance(rows, list) else ():
            if not isinstance(row, dict):
                continue
            link = str(row.get("from")), str(row.get("to"))
            known = {name: value for name in _RATES if (value := number(row.get(name))) is not None}
            if link in self._rates or len(self._rates) < _MOST:
                self._rates[link] = self._rates.get(link, {}) | known

    def row(self, sender: str, receiver: str, hop_bytes_per_s: float | None = None) -> dict[str, object]:
        """Everything about one link. `hop_bytes_per_s`: that of another moment than the last."""
        known = self._rates.get((sender, receiver), {})
        nodes = self._node_of(sender), self._node_of(receiver)
        hop = known.get("hop_bytes_per_s") if hop_bytes_per_s is None else hop_bytes_per_s
        return {
            "from": sender,
            "to": receiver,
            "from_node": nodes[0],
            "to_node": nodes[1],
            "planned_bytes_per_s": self._capacity(*nodes),
            "hop_bytes_per_s": hop,
            "pipeline_bytes_per_s": known.get("pipeline_bytes_per_s"),
            "planned_pipeline_bytes_per_s": self._planned.get((sender, receiver)),
            "bulk_bytes_per_s": known.get("bulk_bytes_per_s"),
        }

    def rows(self) -> list[dict[str, object]]:
        """The links between stages of the run, the worst first: those whose hop is slowest beside what was planned,
        then those that are used most."""
        there = [link for link in self._rates if None not in (self._node_of(link[0]), self._node_of(link[1]))]
        return sorted((self.row(*link) for link in there), key=_badness)

    def _capacity(self, sender: str | None, receiver: str | None) -> float | None:
        """The bytes per second that a flow may have; None for nodes that the plan does not know, or for one node."""
        if sender is None or receiver is None or sender == receiver:
            return None
        try:
            return self._fleet.flow_bytes_per_s(sender, receiver)
        except (InvalidInput, KeyError):
            return None


def _badness(row: Mapping[str, object]) -> tuple[float, float, str, str]:
    planned = number(row["planned_bytes_per_s"]) or float("inf")
    hop, pipeline, bulk = (number(row[name]) for name in ("hop_bytes_per_s", *_RATES[:2]))
    reached = float("inf") if hop is None else hop / planned
    return reached, -((pipeline or 0.0) + (bulk or 0.0)) / planned, str(row["from"]), str(row["to"])


def _planned_traffic(plan: Plan) -> Iterable[tuple[Link, float]]:
    """For each pair of neighbours in a pipeline, in both directions: the bytes per second that the plan counts with."""
    spans = SpanCosts(plan.costs, plan.workload)
    for cluster, predicted in zip(plan.clusters, plan.predicted.clusters, strict=True):
        micro_batches_per_s = predicted.samples_per_s / plan.workload.micro_batch
        for index, stage in enumerate(cluster.stages[:-1]):
            names = stage_name(cluster.name, index), stage_name(cluster.name, index + 1)
            end = stage.units[1]
            yield names, float(spans.forward_bytes[end]) * micro_batches_per_s
            yield names[::-1], float(spans.gradient_bytes[end]) * micro_batches_per_s
