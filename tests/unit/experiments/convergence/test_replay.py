"""Replays against the real thing: the trace's own order of events, with ring_allreduce's Progress for every stage."""

import numpy as np
import pytest
import torch

from experiments.convergence import fleets
from experiments.convergence.cases import Case
from experiments.convergence.objectives import Quadratic, Tilted, equal_blocks
from experiments.convergence.replay import Run, strata, train
from experiments.convergence.schedule import Contribution, schedule_of, steady
from ravnest.simulator.run import VirtualRun
from ring_allreduce import Progress

STEP = 0.05


def live(trace, fleet, objective, blocks):
    """Point of each (cluster, micro-batch), and the last anchor, by following the events one after another."""
    names = {f"c{c}.s{s}": (c, s) for c, cluster in enumerate(fleet.clusters) for s in range(len(cluster.stages))}
    start = torch.from_numpy(objective.start).float()
    weights = {key: start[blocks[key[1]]].clone() for key in names.values()}
    progress = {key: Progress(part) for key, part in weights.items()}
    points: dict[tuple[int, int], dict[int, np.ndarray]] = {}
    contributed: dict[tuple[int, int], dict[int, tuple[torch.Tensor, int]]] = {}
    since = dict.fromkeys(names.values(), 0)
    for event in trace:
        if event.kind != "compute":
            continue
        key, word = names[event.who], event.instruction
        cluster, stage = key
        if word.startswith("F"):
            points.setdefault((cluster, int(word[1:])), {})[stage] = weights[key].numpy().copy()
        elif word.startswith("U"):
            parts = points[cluster, int(word[1:])]
            point = np.concatenate([parts[s] for s in range(len(blocks))])
            gradient = objective.exact(point[None, None].astype(np.float64))[0, 0, blocks[stage]]
            weights[key] -= STEP * torch.from_numpy(gradient).float()
            since[key] += 1
        elif word.startswith("SNAP"):
            number = int(word[4:])
            snapshot = progress[key].snapshot(number, weights[key]).clone()
            contributed.setdefault((stage, number), {})[cluster] = (snapshot, since[key])
            since[key] = 0
        elif word.startswith("M"):
            given = contributed[stage, int(word[1:])].values()
            assert len(given) == len(fleet.clusters), "merged before everybody had contributed"
            whole = sum(count for _, count in given)
            average = sum((count * part for part, count in given), torch.zeros_like(weights[key])) / max(1, whole)
            weights[key] += progress[key].merge(int(word[1:]), average)
    anchor = np.concatenate([progress[0, s].anchor.numpy() for s in range(len(blocks))])
    return points, anchor


@pytest.mark.parametrize(
    "shape",
    [
        fleets.Shape(stages=3, staleness=4),
        fleets.equal(3, stages=2, staleness=2, round=3, lag=2, ring_rounds=1.6),
        fleets.Shape(speeds=(1.0, 1.6, 2.3), stages=2, staleness=1, round=4, ring_rounds=0.7),
    ],
)
def test_it_is_what_stages_with_progress_compute(shape):
    fleet = fleets.fleet_of(shape)
    trace = VirtualRun(fleet).run(stop_samples=120).trace
    schedule = schedule_of(trace, fleet)
    objective = Tilted(dimensions=9, width=0.1, sigma_sq=0.0)
    blocks = equal_blocks(9, shape.stages)
    points, anchor = live(trace, fleet, objective, blocks)
    squares = []
    for cluster, update in zip(schedule.cluster, schedule.update, strict=True):
        point = np.concatenate([points[int(cluster), int(update)][s] for s in range(shape.stages)])
        squares.append(float((objective.exact(point[None, None].astype(np.float64)) ** 2).sum()))
    expected = float((schedule.weight * squares).sum() / schedule.weight.sum())
    found = train(objective, blocks, schedule, [Run(schedule.updates, STEP, 2)])[0]
    assert schedule.updates <= 256, "every update is looked at"
    assert found.live == pytest.approx([expected, expected], rel=1e-4)
    if shape.clusters > 1:
        iterates = [objective.start]
        for weight, cluster, update in zip(schedule.weight, schedule.cluster, schedule.update, strict=True):
            point = np.concatenate([points[int(cluster), int(update)][s] for s in range(shape.stages)])
            gradient = objective.exact(point[None, None].astype(np.float64))[0, 0]
            iterates.append(iterates[-1] - STEP * weight * gradient)
        assert iterates[-1] == pytest.approx(anchor, abs=1e-4), "the last anchor is the last virtual iterate"
        norms = np.asarray([float((objective.exact(z[None, None]) ** 2).sum()) for z in iterates[:-1]])
        assert found.virtual[0] == pytest.approx((schedule.weight * norms).sum() / schedule.weight.sum(), rel=1e-4)


def test_one_cluster_without_delay_is_plain_sgd_and_seeds_differ():
    objective = Quadratic(curvatures=(0.5, 1.0), sigma_sq=0.0)
    schedule = steady([Contribution(8, [0])], 8)
    found = train(objective, equal_blocks(2, 1), schedule, [Run(64, 0.1, 1), Run(16, 0.2, 1)])
    for run, each in zip((Run(64, 0.1), Run(16, 0.2)), found, strict=True):
        weights, norms = objective.start, []
        for _ in range(run.updates):
            gradient = np.asarray(objective.curvatures) * weights
            norms.append(float((gradient**2).sum()))
            weights = weights - run.step * gradient
        assert each.virtual == pytest.approx(each.live)
        assert each.virtual[0] == pytest.approx(np.mean(norms))
    noisy = train(Quadratic(), equal_blocks(24, 1), schedule, [Run(64, 0.1, 3)])[0].virtual
    assert len(set(noisy)) == 3


def test_the_same_seed_gives_the_same_numbers():
    schedule = fleets.schedule(fleets.equal(2, stages=2, staleness=1, round=4), 128)
    case = Case(Quadratic(), schedule)
    one, two = (case.train([128], seeds=3, seed=5)[0] for _ in range(2))
    assert (one.virtual == two.virtual).all()
    assert (one.virtual != case.train([128], seeds=3, seed=6)[0].virtual).all()


def test_naive_merges_diverge_while_rounds_overlap_and_progress_does_not():
    case = Case(Quadratic(), fleets.schedule(fleets.equal(2, stages=1, round=2, lag=3, ring_rounds=3.2), 512))
    naive = case.train([512], seeds=2, merge="naive")[0].live.mean()
    assert naive > 1e3 * case.train([512], seeds=2)[0].live.mean()


def test_no_measured_error_passes_the_bound():
    for made, delays, lag in (((4,), (3, 0), 0), ((2, 5), (1, 1), 1), ((3, 3, 3), (0, 2), 2)):
        schedule = steady([Contribution(each, delays) for each in made], 30, lag)
        for objective in (Quadratic(sigma_sq=2.0), Tilted(sigma_sq=2.0)):
            case = Case(objective, schedule)
            promise = case.promise(schedule.updates)
            found = case.train([schedule.updates], [promise.largest_step], seeds=8)[0].virtual.mean()
            assert found < promise.bound(promise.largest_step), (made, delays, lag, objective.name)


@pytest.mark.parametrize("updates", [1, 5, 256, 257, 1000, 2**16])
def test_strata_cover_all_updates_once_and_are_short_at_the_beginning(updates):
    edges = strata(updates)
    assert (edges[0], edges[-1]) == (0, updates)
    lengths = np.diff(edges)
    assert (lengths > 0).all()
    assert lengths[0] == 1
    assert len(lengths) <= 320
