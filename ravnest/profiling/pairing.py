"""Chooses which pairs of nodes are measured, and which at the same time: never two pairs that share a node.

In: names, and distances where they are known. Out: pairs, and rounds of pairs. The module is pure: it uses no clock and
no socket. A pair is unordered, and both of its directions are measured in one turn. There are two schemes. A few nodes
are measured in all pairs, in the fewest rounds, in which each node rests at most once. Of many nodes a sample is
measured, in which each node has its nearest peers, its farthest peer and some random peers. The sample is connected, so
that the planner can estimate the other pairs from shortest paths.
"""

import random
from collections import Counter
from collections.abc import Callable, Collection, Hashable, Iterable, Mapping, Sequence
from typing import TypeVar

Pair = tuple[str, str]
T = TypeVar("T")

ALL_PAIRS_UP_TO = 12
"""Of more nodes than this, only a sample of the pairs is measured."""


def all_pairs(names: Sequence[str]) -> list[list[Pair]]:
    """Rounds that together hold each pair once, by the circle method of round-robin tournaments.

    There are n − 1 rounds for an even number n of names and n for an odd one. Raises ValueError for a repeated name.
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
    """Pairs in which each node meets at least `peers` others, or all others where there are fewer.

    With `distances`, by ordered pair, only the pairs in it are chosen: a third of a node's peers are its nearest, one
    is its farthest, and the rest are random. A ring through all nodes in random order keeps the sample connected, as
    far as the pairs of that ring may be chosen; those of an earlier sample with the same names and seed may. The same
    seed gives the same pairs. Raises ValueError for fewer than 2 peers and for a repeated name.
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
    """Sorts the tasks into rounds of at most `at_once`, each task into the earliest round that has none of its nodes.

    `nodes_of` gives the nodes that a task uses. Raises ValueError where `at_once` is below 1.
    """
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
