"""Better groups by small changes: nodes move or change places, clusters split or merge, spares come in or go out.

Clusters are visited in a seeded order. Of all changes of one cluster with its NEAR nearest neighbours, the best is
taken if it raises the score, until none does or as many groups have been estimated as allowed. Of exchanges, which are
many, only the PROMISING are estimated: they are judged by what each group gains and loses by the two halves of an
exchange, taken by themselves. In: groups as numbers, their estimates, and a score. Machines and models do not enter.
"""

import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from cluster_planner.inputs.spans import Floats
from cluster_planner.search.estimates import NOTHING, Estimator, Group, GroupEstimate, merged

NEAR = 4
"""The number of nearest clusters, and of nearest spares, with which a cluster's changes are tried."""

GAIN = 1e-6
"""A change must raise the score by more than this part of it."""

SMALL = 5
"""A cluster of at most this many nodes is split in every way; a larger one is split along its length and by speed."""

PROMISING = 6
"""The number of exchanges with one neighbour, or with spares, that are estimated."""


Allows = Callable[[Group], bool]
"""A function that says whether nodes may form one cluster."""


class Totals(NamedTuple):
    """Sums over several clusters: their number, their samples/s and their value."""

    clusters: float = 0.0
    samples_per_s: float = 0.0
    value: float = 0.0

    def plus(self, estimates: Iterable[GroupEstimate]) -> "Totals":
        """Return the totals with these clusters added."""
        clusters, rate, value = self
        for one in estimates:
            clusters, rate, value = clusters + 1, rate + one.samples_per_s, value + one.value
        return Totals(clusters, rate, value)

    def minus(self, other: "Totals") -> "Totals":
        """Return these totals less those of other clusters."""
        return Totals(*(mine - theirs for mine, theirs in zip(self, other, strict=True)))


Score = Callable[[Totals], float]
"""A function that gives the score of clusters together from their totals."""


@dataclass(frozen=True)
class Change:
    """A change gives up the groups `old` for the groups `new`. A node that no new group takes becomes spare."""

    old: tuple[Group, ...]
    new: tuple[Group, ...]


class LocalSearch:
    """A local search improves groupings of the nodes whose coordinates are `points` (a row's index is the node's
    number).

    `atoms` lists the sets of nodes that stay together; each node is in one of them. `needed` names the nodes that never
    become spares.
    """

    def __init__(
        self,
        estimator: Estimator,
        score: Score,
        points: Floats,
        atoms: Sequence[Group],
        allows: Allows,
        needed: frozenset[int] = frozenset(),
    ) -> None:
        self._estimator, self._score, self._points, self._allows = estimator, score, points, allows
        self._needed = needed
        self._atoms = tuple(atoms)
        self._atom_of = {node: atom for atom in atoms for node in atom}
        self._centres: dict[Group, tuple[float, ...]] = {}

    def improve(self, groups: Sequence[Group], most: int, seed: int) -> tuple[tuple[Group, ...], bool]:
        """Return the improved groups, and whether the search ended because no single change helps any more.

        The groups contain no node that their pipelines would leave out. `most` is the number of groups that may be
        estimated.
        """
        until = self._estimator.asked + most
        random = np.random.default_rng(seed)
        state = {
            group: one for group, one in self._pruned(groups) if one.value > 0 or not self._needed.isdisjoint(group)
        }
        settled = False
        while not settled:
            settled = True
            order = list(state)
            for i in random.permutation(len(order)):
                if order[i] not in state:
                    continue
                if self._estimator.asked >= until:
                    return tuple(state), False
                if self._take_best(state, order[i]):
                    settled = False
        return tuple(state), True

    def _take_best(self, state: dict[Group, GroupEstimate], group: Group) -> bool:
        everyone = Totals().plus(state.values())
        best: tuple[Change, list[GroupEstimate]] | None = None
        best_score = self._score(everyone) * (1 + GAIN)
        for found in (self._changes, self._exchanges):
            changes = [
                change for change in found(state, group) if all(map(self._allows, change.new)) and self._keeps(change)
            ]
            estimates = iter(self._estimator.of(new for change in changes for new in change.new))
            for change in changes:
                news = [next(estimates) for _ in change.new]
                if any(one is NOTHING for one in news):
                    continue
                left = everyone.minus(Totals().plus(state[old] for old in change.old))
                score = self._score(left.plus(news))
                if score > best_score:
                    best, best_score = (change, news), score
        if best is None:
            return False
        for old in best[0].old:
            del state[old]
        state |= {self._whole(new, one.used): one for new, one in zip(best[0].new, best[1], strict=True)}
        return True

    def _keeps(self, change: Change) -> bool:
        """Say whether all needed nodes stay in some group."""
        old = (node for group in change.old for node in group if node in self._needed)
        return not self._needed or set(old) <= {node for group in change.new for node in group}

    def _pruned(self, groups: Sequence[Group]) -> Iterator[tuple[Group, GroupEstimate]]:
        for group, estimate in zip(groups, self._estimator.of(groups), strict=True):
            yield self._whole(group, estimate.used), estimate

    def _whole(self, group: Group, used: Group) -> Group:
        """Return the nodes that a group uses, the rest of each atom that is used in part, and needed nodes."""
        kept = (*used, *(node for node in group if node in self._needed))
        return tuple(sorted({node for one in kept for node in self._atom_of[one]}))

    def _changes(self, state: dict[Group, GroupEstimate], group: Group) -> Iterator[Change]:
        """Return all changes of one cluster except exchanges."""
        spares = self._spares(state)
        near_spares = self._nearest(group, spares)
        mine = self._atoms_in(group)
        yield Change((group,), ())
        for new in self._splits(group, mine):
            yield Change((group,), new)
        for atom in mine if len(mine) > 1 else ():
            yield Change((group,), (_without(group, atom),))
        for spare in near_spares:
            yield Change((group,), (merged(group, spare),))
        if spares:
            yield from self._founded(spares, near_spares)
        for other in self._nearest(group, [g for g in state if g != group]):
            yield Change((group, other), (merged(group, other),))
            theirs = self._atoms_in(other)
            for atom in mine if len(mine) > 1 else ():
                yield Change((group, other), (_without(group, atom), merged(other, atom)))
            for atom in theirs if len(theirs) > 1 else ():
                yield Change((group, other), (merged(group, atom), _without(other, atom)))

    def _exchanges(self, state: dict[Group, GroupEstimate], group: Group) -> Iterator[Change]:
        """Return the promising exchanges of a node for a spare, and of a node for a neighbour's node."""
        mine = self._atoms_in(group)
        spares = self._nearest(group, self._spares(state)) if len(mine) > 1 else []
        for given, got in _promising(self._halves(state, group, mine, spares)):
            yield Change((group,), (_exchanged(group, mine[given], spares[got]),))
        for other in self._nearest(group, [g for g in state if g != group]):
            theirs = self._atoms_in(other)
            both = self._halves(state, group, mine, theirs) + self._halves(state, other, theirs, mine).T
            for given, got in _promising(both):
                atom, one = mine[given], theirs[got]
                yield Change((group, other), (_exchanged(group, atom, one), _exchanged(other, one, atom)))

    def _halves(
        self, state: dict[Group, GroupEstimate], group: Group, given: Sequence[Group], got: Sequence[Group]
    ) -> Floats:
        """Return about how much a group gains by either half of each exchange, as [given, got].

        A group that is worth nothing without the node counts for as much less as it is smaller.
        """
        now = state[group].value
        less = self._estimator.of(_without(group, atom) for atom in given)
        more = self._estimator.of(merged(group, atom) for atom in got)
        without = [
            one.value if one is not NOTHING else now * (1 - len(atom) / len(group))
            for one, atom in zip(less, given, strict=True)
        ]
        return np.add.outer(without, [max(one.value, now) for one in more]) - 2 * now

    def _spares(self, state: dict[Group, GroupEstimate]) -> list[Group]:
        taken = {node for other in state for node in other}
        return [atom for atom in self._atoms if atom[0] not in taken]

    def _founded(self, spares: Sequence[Group], near: Sequence[Group]) -> Iterator[Change]:
        """Return new clusters that consist of the nearest spare and 1, 2, … of the spares around it."""
        for first in near[:1]:
            around = self._nearest(first, [atom for atom in spares if atom != first])
            for count in range(1, len(around) + 1):
                yield Change((), (merged(first, *around[:count]),))

    def _splits(self, group: Group, atoms: Sequence[Group]) -> Iterator[tuple[Group, Group]]:
        count = len(atoms)
        if count <= SMALL:
            for chosen in range(1, 1 << (count - 1)):  # the last atom stays in the second part
                first = [atom for i, atom in enumerate(atoms) if chosen >> i & 1]
                yield merged(*first), merged(*(atom for atom in atoms if atom not in first))
            return
        centred = self._points[list(group)] - self._points[list(group)].mean(axis=0)
        axis = np.linalg.svd(centred, full_matrices=False)[2][0]
        along = sorted(atoms, key=lambda atom: (float(np.dot(self._centre(atom), axis)), atom))
        for at in range(1, count):
            yield merged(*along[:at]), merged(*along[at:])
        by_speed = sorted(atoms, key=lambda atom: (self._centre(atom)[-1], atom))
        yield merged(*by_speed[::2]), merged(*by_speed[1::2])

    def _atoms_in(self, group: Group) -> list[Group]:
        return list(dict.fromkeys(self._atom_of[node] for node in group))

    def _nearest(self, group: Group, others: Sequence[Group]) -> list[Group]:
        centre = self._centre(group)
        return sorted(others, key=lambda other: (math.dist(centre, self._centre(other)), other))[:NEAR]

    def _centre(self, group: Group) -> tuple[float, ...]:
        if group not in self._centres:
            self._centres[group] = tuple(self._points[list(group)].mean(axis=0).tolist())
        return self._centres[group]


def _without(group: Group, atom: Group) -> Group:
    return tuple(node for node in group if node not in atom)


def _exchanged(group: Group, given: Group, got: Group) -> Group:
    return merged(_without(group, given), got)


def _promising(gains: Floats) -> list[tuple[int, int]]:
    """Return the places of the PROMISING largest values."""
    best = np.argsort(-gains, axis=None, kind="stable")[:PROMISING].tolist()
    return [divmod(at, gains.shape[1]) for at in best]
