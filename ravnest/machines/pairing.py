"""Which pairs of nodes are measured, and which of them at the same time: never two that share a node.

Pure: knows names and distances, no clock and no socket. A pair is unordered here; both of its directions are measured
in one turn. Two schemes: all pairs, in the fewest rounds (each node rests at most once); or, for many nodes, a sample
in which each node has its nearest peers, its farthest and some of chance, and which is connected, so that the planner
can estimate the rest from shortest paths.
"""

import random
from collections.abc import Callable, Collection, Hashable, Iterable, Sequence
from typing import TypeVar

Pair = tuple[str, str]
Distance = Callable[[str, str], float]
T = TypeVar("T")

ALL_PAIRS_UP_TO = 12
"""Nodes; beyond, pairs are sampled."""


def all_pairs(names: Sequence[str]) -> list[list[Pair]]:
    """Rounds that hold each pair once: the circle method of round-robin tournaments.

    n − 1 rounds for an even number of names, n for an odd one. Raises ValueError where a name stands twice.
    """
    _require_distinct(names)
    circle: list[str | None] = [*names, *([None] if len(names) % 2 else [])]
    rounds = []
    for _ in range(len(circle) - 1):
        half = len(circle) // 2
        facing = zip(circle[:half], reversed(circle[half:]), strict=True)
        rounds.append([(a, b) for a, b in facing if a is not None and b is not None])
        circle = [circle[0], circle[-1], *circle[1:-1]]
    return [pairs for pairs in rounds if pairs]


def sampled_pairs(names: Sequence[str], peers: int, seed: int, distance: Distance | None = None) -> list[Pair]:
    """Pairs in which each node meets at least `peers` others (all of them where there are no more).

    With a `distance`, a third of a node's peers are its nearest and one its farthest; the rest are chance. A ring
    through all nodes in an order of chance keeps the sample connected. The same seed gives the same pairs.
    """
    _require_distinct(names)
    if peers < 2:
        raise ValueError(f"each node needs 2 peers at the least, not {peers}")
    chance = random.Random(seed)
    ring = list(names)
    chance.shuffle(ring)
    chosen = {_pair(a, b) for a, b in zip(ring, [*ring[1:], *ring[:1]], strict=True) if a != b}
    for name in names:
        others = [other for other in names if other != name]
        chance.shuffle(others)
        wanted = others
        if distance is not None:
            by_distance = sorted(others, key=lambda other: distance(name, other))
            wanted = list(dict.fromkeys([*by_distance[: max(1, peers // 3)], *by_distance[-1:], *others]))
        for other in wanted:
            if sum(name in pair for pair in chosen) >= min(peers, len(others)):
                break
            chosen.add(_pair(name, other))
    return sorted(chosen)


def in_rounds(tasks: Iterable[T], nodes_of: Callable[[T], Collection[Hashable]], at_once: int) -> list[list[T]]:
    """The tasks in rounds of at most `at_once`, no two of a round sharing a node, each as early as it fits."""
    if at_once < 1:
        raise ValueError(f"at least one task has to run at once, not {at_once}")
    rounds: list[list[T]] = []
    busy: list[set[Hashable]] = []
    for task in tasks:
        nodes = set(nodes_of(task))
        place = next((i for i, taken in enumerate(busy) if not taken & nodes and len(rounds[i]) < at_once), len(rounds))
        if place == len(rounds):
            rounds.append([])
            busy.append(set())
        rounds[place].append(task)
        busy[place] |= nodes
    return rounds


def _pair(a: str, b: str) -> Pair:
    return (a, b) if a <= b else (b, a)


def _require_distinct(names: Sequence[str]) -> None:
    if len(set(names)) != len(names):
        raise ValueError("a name stands twice among the nodes")
