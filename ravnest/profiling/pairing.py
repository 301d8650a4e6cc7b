"""Which pairs of nodes are measured, and which of them at the same time: never two that share a node.

Pure: knows names and distances, no clock and no socket. A pair is unordered here; both of its directions are measured
in one turn. Two schemes: all pairs, in the fewest rounds (each node rests at most once); or, for many nodes, a sample
in which each node has its nearest peers, its farthest and some of chance, and which is connected, so that the planner
can estimate the rest from shortest paths.
"""

import random
from collections import Counter
from collections.abc import Callable, Collection, Hashable, Iterable, Mapping, Sequence
from typing import TypeVar

Pair = tuple[str, str]
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


def sampled_pairs(
    names: Sequence[str], peers: int, seed: int, distances: Mapping[Pair, float] | None = None
) -> list[Pair]:
    """Pairs in which each node meets at least `peers` others (all that it can meet where these are no more).

    With `distances`, by ordered pair, only these pairs are chosen: a third of `peers` are a node's nearest and one its
    farthest; the rest are chance. A ring through all nodes in an order of chance keeps the sample connected, as far as
    its pairs may be chosen: those of a sample with the same names and seed are. The same seed gives the same pairs.
    """
    _require_distinct(names)
    if peers < 2:
        raise ValueError(f"each node needs 2 peers at the least, not {peers}")
    chance = random.Random(seed)
    ring = list(names)
    chance.shuffle(ring)
    around = {_pair(a, b) for a, b in zip(ring, [*ring[1:], *ring[:1]], strict=True) if a != b}
    chosen = around if distances is None else around & distances.keys()
    possible = {name: [other for other in names if other != name] for name in names}
    if distances is not None:
        for name, others in possible.items():
            others[:] = [other for other in others if _pair(name, other) in distances]
            others.sort(key=_by_distance(name, distances))
            chosen |= {_pair(name, other) for other in (*others[: max(1, peers // 3)], *others[-1:])}
    met = Counter(name for pair in chosen for name in pair)
    for name, others in possible.items():
        chance.shuffle(others)
        for other in others:
            if met[name] >= peers:
                break
            if _pair(name, other) not in chosen:
                chosen.add(_pair(name, other))
                met.update((name, other))
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


def _by_distance(name: str, distances: Mapping[Pair, float]) -> Callable[[str], float]:
    return lambda other: distances[_pair(name, other)]


def _pair(a: str, b: str) -> Pair:
    return (a, b) if a <= b else (b, a)


def _require_distinct(names: Sequence[str]) -> None:
    if len(set(names)) != len(names):
        raise ValueError("a name stands twice among the nodes")
