"""A run of many nodes that trains nothing: its folder is written as a run writes it.

In: a plan. Out: a folder with plan.yaml, and a growing metrics.jsonl with its history.jsonl. Each second has a record
of progress, one of the stages' times, and the updates of those stages whose turn it is; every fifth has what each link
of the pipelines and rings carries; each minute has a round. The memory of the stages comes at the beginning. The same
seed gives the same figures.
"""

import json
import os
import random
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path

from cluster_planner import Plan, save_plan
from ravnest.driver.observe import report
from ravnest.driver.observe.history import PARTS, History
from ravnest.driver.observe.metrics_file import HISTORY, MetricsWriter, records_from_end
from ravnest.pipeline import stage_name

UPDATE_EVERY_S = 4
"""Seconds between two updates of a stage: 16 micro-batches, or a quarter of a second each."""
SAMPLES_AN_UPDATE = 128
LINKS_EVERY_S = 5
CAUSES = ("input", "window", "staleness", "lag")


class GeneratedRun:
    """The run, which goes on for as long as it is asked for another second."""

    def __init__(self, folder: Path, plan: Plan, seed: int = 0) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        save_plan(plan, folder / "plan.yaml")
        self._plan, self._chance, self._second = plan, random.Random(seed), 0
        self.metrics = folder / "metrics.jsonl"
        self._writer = MetricsWriter(self.metrics)
        self._event(report.PhaseEvent("training"))
        for cluster, index, _ in self._stages():
            parts = {"weights": 20_000_000, "optimizer": 40_000_000, "activations": 10_000_000}
            self._writer.write("memory", 0, cluster=cluster, stage=index, tensor_bytes=parts)

    def seconds(self, count: int) -> None:
        """Write so many seconds more."""
        for _ in range(count):
            self._second += 1
            for cluster, index, _ in self._stages():
                if (self._second + index) % UPDATE_EVERY_S == 0:
                    self._update(cluster, index)
            self._progress()
            if self._second % LINKS_EVERY_S == 0:
                self._writer.write("links", self._second, links=list(self._links()))
            if self._second % 60 == 0:
                for event in self._minute():
                    self._event(event)

    def days(self, count: int) -> None:
        """Go on as if so many days had passed. Their history is written as a run writes it; for the lines of
        metrics.jsonl there is a hole as long as they would be, which nobody reads who reads the history."""
        self.seconds(60)
        self._writer.close()
        until, a_second = self._second + count * 86_400, self.metrics.stat().st_size / self._second
        history = History(next(records_from_end(self.metrics.with_name(HISTORY), "past"), None))
        with self.metrics.with_name(HISTORY).open("a") as file:
            while self._second < until:
                self._second += min(max(1, self._second // PARTS), 60 - self._second % 60)
                happened = (*(self._minute() if self._second % 60 == 0 else ()), self._progressed())
                for event in happened:
                    record = {"kind": report.kind_of(event), "at_s": self._second, **report.as_plain(event)}
                    kept = history.take(record, round(self._second * a_second))
                    file.writelines(json.dumps(each, separators=(",", ":")) + "\n" for each in kept)
        with self.metrics.open("r+b") as hole:
            hole.truncate(round(self._second * a_second))
            hole.seek(0, os.SEEK_END)
            hole.write(b"\n")
        self._writer = MetricsWriter(self.metrics)

    def _minute(self) -> Iterator[report.RunEvent]:
        number = self._second // 60
        received = {stage_name(cluster, index): 12_000_000 for cluster, index, _ in self._stages()}
        yield report.RoundCommittedEvent(number, self._samples(), 20.0, None, received)
        yield report.NoticeEvent(f"a minute has passed: the {number}.")

    def close(self) -> None:
        self._writer.close()

    def _stages(self) -> Iterator[tuple[str, int, bool]]:
        for cluster in self._plan.clusters:
            for index in range(len(cluster.stages)):
                yield cluster.name, index, index == len(cluster.stages) - 1

    def _links(self) -> Iterator[dict[str, object]]:
        """What a run says of its links: of those in a pipeline what micro-batches send, both ways; of those in a ring
        what averages send, and how fast they came."""
        for each in self._plan.clusters:
            names = [stage_name(each.name, index) for index in range(len(each.stages))]
            for pair in pairwise(names):
                for sender, receiver in (pair, pair[::-1]):
                    rate = round(self._chance.uniform(1e4, 1e6))
                    yield {"from": sender, "to": receiver, "pipeline_bytes_per_s": rate}
        for ring in self._plan.rings:
            members = [stage_name(*member) for member in ring.members]
            for sender, receiver in pairwise((*members, members[0])):
                rates = {"bulk_bytes_per_s": 3e5, "hop_bytes_per_s": round(self._chance.uniform(1e5, 1e7))}
                yield {"from": sender, "to": receiver, **rates}

    def _update(self, cluster: str, index: int) -> None:
        update = self._second // UPDATE_EVERY_S
        fields: dict[str, object] = {"cluster": cluster, "stage": index, "update": update, "lr": 1e-3}
        fields["staleness"] = [self._chance.choice((0, 1)) for _ in range(16)]
        if index == len(self._plan.cluster(cluster).stages) - 1:
            fields |= {"loss": self._loss(), "samples": SAMPLES_AN_UPDATE * (update + 1)}
        self._writer.write("update", self._second, **fields)

    def _loss(self) -> float:
        return 2.0 + 3.0 / (1.0 + self._second / 60) + self._chance.gauss(0.0, 0.05)

    def _samples(self) -> int:
        return len(self._plan.clusters) * SAMPLES_AN_UPDATE * (self._second // UPDATE_EVERY_S)

    def _progressed(self) -> report.ProgressEvent:
        updates = self._second // UPDATE_EVERY_S
        clusters = tuple(
            report.ClusterProgress(
                each.name, SAMPLES_AN_UPDATE * updates, SAMPLES_AN_UPDATE / UPDATE_EVERY_S, self._loss(), 1, updates, 0
            )
            for each in self._plan.clusters
        )
        return report.ProgressEvent(self._second, self._samples(), 10**10, clusters)

    def _progress(self) -> None:
        self._event(self._progressed())
        stages = {}
        for cluster, index, _ in self._stages():
            compute = self._chance.uniform(0.3, 0.95)
            waits = {self._chance.choice(CAUSES): 0.9 * (1 - compute)}
            parts = {"seconds": 1.0, "compute": compute, "averaging": 0.02, "evaluation": 0.0, "handoff": 0.05}
            stages[f"{cluster}.s{index}"] = {**parts, "bubble": 0.9 * (1 - compute), "waiting": waits}
        self._writer.write("time", self._second, stages=stages)

    def _event(self, event: report.RunEvent) -> None:
        self._writer.write(report.kind_of(event), self._second, **report.as_plain(event))
