"""Other ways to plan, each as good as it can be made without this planner's search; all are judged by its prediction.

Decides, for each way, groups, orders and cuts. A way that finds no plan that fits in memory is worth 0. By seed.
"""

import itertools
import time
from collections.abc import Sequence

import numpy as np

from cluster_planner import Cluster, Fleet, ModelCosts, SpanCosts, Stage, Workload, make_rings, predict
from cluster_planner.pipeline.best_pipeline import timed
from cluster_planner.predict.objective import AveragingLimits
from cluster_planner.search.candidates import Assembler
from cluster_planner.search.estimates import FINE_POSITIONS, Estimator, Group
from cluster_planner.search.starting_groups import embed, group_nodes

INDIVIDUALS = 100
IMPROVED = 4
"""Changes of each child that are tried, one after another; each is an evaluation."""
WORKED_OUT = 10
"""Of the last individuals so many are worked out exactly, and the best counts."""
LEAST = 1


class Site:
    """A fleet with a model, and what plans for it are worth."""

    def __init__(self, fleet: Fleet, costs: ModelCosts, work: Workload) -> None:
        self.fleet, self.costs, self.work = fleet, costs, work
        self.spans = SpanCosts(costs, work)

    def objective(self, clusters: Sequence[Sequence[Stage]]) -> float:
        """Of these stages as clusters; 0 where one has no memory for its span."""
        planned = []
        for i, stages in enumerate(clusters):
            for index, stage in enumerate(stages):
                needed = self.spans.stage_memory_bytes(*stage.units, (index, len(stages)), 1)
                if needed > self.fleet.node(stage.node).memory_bytes:
                    return 0.0
            planned.append(Cluster(f"c{i}", timed(self.fleet, self.spans, tuple(stages), 0.0).window, tuple(stages)))
        rings = make_rings(self.fleet, self.spans, planned)
        return predict(self.fleet, self.spans, planned, rings).prediction.objective

    def cut_by(self, names: Sequence[str], weights: Sequence[float]) -> list[Stage]:
        """Stages of these nodes in this order, each with its weight's part of the units and at least one."""
        units, total = self.spans.count, sum(weights)
        ends = [round(units * part / total) for part in itertools.accumulate(weights)]
        for i in range(len(ends)):
            ends[i] = min(max(ends[i], i + 1), units - (len(ends) - 1 - i))
        return [Stage(name, span) for name, span in zip(names, itertools.pairwise((0, *ends)), strict=True)]


def random_plan(site: Site, random: np.random.Generator) -> float:
    """A random number of random groups in random order with random cuts; drawn again, up to 50 times, where memory is
    short."""
    names = list(site.fleet.names)
    for _ in range(50):
        clusters = int(random.integers(1, len(names) // LEAST + 1))
        order = [names[i] for i in random.permutation(len(names))]
        ends = [round(len(order) * (i + 1) / clusters) for i in range(clusters)]
        groups = [order[a:b][: site.spans.count] for a, b in itertools.pairwise((0, *ends))]
        found = site.objective([site.cut_by(group, random.uniform(0.5, 1.5, len(group)).tolist()) for group in groups])
        if found > 0:
            return found
    return 0.0


def simple_split(site: Site, by: str) -> float:
    """k-means groups for the best k, in the order given, cut "equally", by "memory" or by "speed"."""
    points = embed(site.fleet, site.fleet.names)
    best = 0.0
    for clusters in range(1, len(site.fleet.nodes) // LEAST + 1):
        groups = group_nodes(points, clusters, 0, lambda group: len(group) >= LEAST)
        if groups is None:
            continue
        stages = []
        for group in groups:
            nodes = [site.fleet.nodes[i] for i in group][: site.spans.count]
            weights = {
                "equally": [1.0] * len(nodes),
                "memory": [float(node.memory_bytes) for node in nodes],
                "speed": [node.flops_per_s for node in nodes],
            }
            stages.append(site.cut_by([node.name for node in nodes], weights[by]))
        best = max(best, site.objective(stages))
    return best


def genetic(site: Site, *, evaluations: int | None, seconds: float | None, seed: int = 0) -> tuple[float, int]:
    """(objective, evaluations) of a genetic algorithm of DT-FM's kind, which improves children by a local search of its
    own: individuals are divisions into groups; children take whole groups of both parents; one in two is mutated, and
    then moves and swaps are kept that better it; the best INDIVIDUALS survive. Fitness is the planner's own estimate
    under its objective, the result is worked out exactly by its pipelines and rings.
    """
    random = np.random.default_rng(seed)
    finer = SpanCosts(site.costs, site.work, FINE_POSITIONS)
    estimator = Estimator(site.fleet, site.spans.coarse, LEAST, 0.0, finer)
    nodes, began_s = len(site.fleet.nodes), time.process_time()

    def fitness(labels: Sequence[int]) -> float:
        groups = _groups(labels)
        found = estimator.of(groups)
        if any(one.value <= 0 for one in found):
            return 0.0
        rate, value = sum(one.samples_per_s for one in found), sum(one.value for one in found)
        return AveragingLimits().worth(len(found), rate, value, site.work)

    def new() -> list[int]:
        labels: list[int] = random.integers(0, int(random.integers(1, nodes // LEAST + 1)), nodes).tolist()
        return labels

    crowd = sorted(((fitness(one), one) for one in (new() for _ in range(INDIVIDUALS))), reverse=True)
    done = INDIVIDUALS
    while (evaluations is None or done < evaluations) and (seconds is None or time.process_time() - began_s < seconds):
        first, second = (crowd[int(i)][1] for i in random.integers(0, len(crowd), 2))
        child = list(second)
        for label in {first[int(i)] for i in random.integers(0, nodes, 3)}:
            for i in range(nodes):
                if first[i] == label:
                    child[i] = nodes + label
        if random.integers(2):
            child = _changed(child, random)
        names = {label: number for number, label in enumerate(dict.fromkeys(child))}
        child = [names[label] for label in child]
        grown = [(fitness(child), child)]
        for _ in range(IMPROVED):
            changed = _changed(max(grown)[1], random)
            grown.append((fitness(changed), changed))
        done += len(grown)
        crowd = sorted([*crowd, max(grown)], reverse=True)[:INDIVIDUALS]
    assembler = Assembler(site.fleet, site.spans, LEAST)
    named = [[tuple(site.fleet.names[i] for i in group) for group in _groups(one)] for _, one in crowd[:WORKED_OUT]]
    found = [assembler.candidate(groups) for groups in named]
    return max((one.objective for one in found if one is not None), default=0.0), done


def _changed(labels: Sequence[int], random: np.random.Generator) -> list[int]:
    """With one node in another's group, or two in each other's."""
    changed = list(labels)
    i, j = random.integers(0, len(changed), 2).tolist()
    changed[i], changed[j] = changed[j], changed[i] if random.integers(2) else changed[j]
    return changed


def _groups(labels: Sequence[int]) -> list[Group]:
    return [tuple(i for i, one in enumerate(labels) if one == label) for label in sorted(set(labels))]
