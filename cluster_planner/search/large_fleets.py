"""Clusters of a large fleet, block by block, so that time grows with the number of nodes and not with its square.

Nodes are divided along the direction in which their coordinates differ most, at the median unless asked otherwise,
until no block has more than LARGEST nodes. Every block is grouped by k-means for several numbers of clusters. Which
clusters of which grouping are taken is a matter of one price: a cluster more makes all others' samples count less, and
is worth having only where its value is above that price. The price with the best score is taken; what is not worth it
stays spare. What a round of averaging takes is known only of a plan that has been worked out, so the price is found
again with the figures of the plan before.

Then local searches follow in one block after the other, with all others as they are by then; blocks whose best cluster
is not nearly worth the price are passed over. Other blocks, with clusters whole, are cut for the next round, so that
what lay on two sides of a border can come together.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from cluster_planner.formatting import format_count, format_rate
from cluster_planner.inputs.spans import Floats
from cluster_planner.predict.objective import AveragingLimits
from cluster_planner.search.candidates import Candidate, averaging_limits_of
from cluster_planner.search.estimates import Group, GroupEstimate
from cluster_planner.search.local_search import Totals
from cluster_planner.search.search_context import SearchContext
from cluster_planner.search.starting_groups import largest_eigenvectors

PRICES = 40
"""The number of prices tried. Each is less than the one before by the same factor, down to LEAST_PRICE of the most
valuable cluster.
"""
LEAST_PRICE = 0.02

FIRST = 24
"""The number of clusters that are worked out first. Without the figures of their rings no price can be judged."""
PRICED = 3
"""The number of times that prices are tried, each time with the figures of the plan before."""

HOPEFUL = 0.7
"""A block is searched if its best cluster is worth this part of the price of a cluster."""

CUTS = (0.5, 0.38)
"""Blocks are cut at this fraction of their nodes, one entry for each round."""

BLOCK_ESTIMATES_PER_NODE = 4
"""The number of groups that a search in a block may estimate for each node."""

LARGEST_MEAN, STEP = 14, 0.4
"""The fewest clusters that are tried have LARGEST_MEAN nodes on average; each next number is larger by the part STEP.
"""

EstimatedGroup = tuple[Group, GroupEstimate]
WorkOut = Callable[[str, Sequence[Group], str, float], Candidate | None]


LARGEST = 120


@dataclass(frozen=True)
class _Block:
    """A block of nodes, and its `menu`: the groupings found, each as clusters that hold the model.

    A cluster that has one of the nodes in `needed` is always taken.
    """

    nodes: Group
    menu: tuple[tuple[EstimatedGroup, ...], ...]
    needed: frozenset[int] = frozenset()

    def bought(self, price: float) -> tuple[EstimatedGroup, ...]:
        """Return the clusters that are worth the price, of the grouping that is worth most at that price."""
        offers = [
            tuple(one for one in grouping if one[1].value > price or not self.needed.isdisjoint(one[0]))
            for grouping in self.menu
        ]
        return max(offers, key=lambda offer: sum(one.value - price for _, one in offer), default=())

    @property
    def dearest(self) -> tuple[EstimatedGroup, ...]:
        """Return the cluster that is worth most, if there is any."""
        every = [one for grouping in self.menu for one in grouping]
        return (max(every, key=lambda one: one[1].value),) if every else ()


def by_blocks(context: SearchContext, work_out: WorkOut) -> Candidate | None:
    """Return the best plan found, or None.

    `work_out` plans groups exactly; its second argument is about how many samples/s they make.
    """
    problem = context.problem
    cut = joined(blocks_of(context.points, problem.able), context.rules.atoms(problem.able))
    blocks = [_surveyed(context, nodes) for nodes in cut]
    best, conditions = None, AveragingLimits()
    starts: list[tuple[Group, ...]] = []
    tried: set[float] = set()
    for most in (FIRST, *(PRICED - 1) * (len(problem.able),)):
        price, chosen = _priced(context, blocks, conditions, most)
        groups = [group for offer in chosen for group, _ in offer]
        if not groups:
            return None
        if price in tried:
            break
        tried.add(price)
        rate = sum(one.samples_per_s for offer in chosen for _, one in offer)
        words = f"{format_count(len(blocks), 'block')}, clusters worth {format_rate(price)} or more"
        found = work_out("blocks", groups, words, rate)
        if starts and (found is None or (best is not None and found.objective <= best.objective)):
            break
        starts = [_start(block, offer, price) for block, offer in zip(blocks, chosen, strict=True)]
        best = found
        conditions = AveragingLimits() if best is None else averaging_limits_of(best)
    cut = [block.nodes for block in blocks]
    groups = [group for start in starts for group in start]
    searched = []
    for number, fraction in enumerate(CUTS):
        if number:
            cut, starts = _cut_again(context, groups, fraction)
        groups, asked = _round(context, cut, starts, conditions)
        searched.append(asked)
    words = f"in {' and then '.join(format_count(each, 'block') for each in searched)}"
    found = work_out("local search", groups, words, conditions.samples_per_s)
    return found if best is None or (found is not None and found.objective > best.objective) else best


def _cut_again(
    context: SearchContext, groups: Sequence[Group], fraction: float
) -> tuple[list[Group], list[tuple[Group, ...]]]:
    """Return other blocks, each cluster whole in one of them, and the clusters in each."""
    able, running = context.problem.able, {node for group in groups for node in group}
    atoms = [*groups, *context.rules.atoms([node for node in able if node not in running])]
    cut = joined(blocks_of(context.points, able, fraction), atoms)
    home = {node: i for i, nodes in enumerate(cut) for node in nodes}
    starts: list[list[Group]] = [[] for _ in cut]
    for group in groups:
        starts[home[group[0]]].append(group)
    return cut, [tuple(start) for start in starts]


def _surveyed(context: SearchContext, nodes: Group) -> _Block:
    estimator = context.estimator(1, AveragingLimits())
    menu: list[tuple[EstimatedGroup, ...]] = []
    for k in _counts(len(nodes), context.problem.least):
        groups = context.grouped(nodes, k, 1)
        if groups is None and menu:
            break  # more clusters hold the model no better
        if groups is not None:
            found = zip(groups, estimator.of(groups), strict=True)
            menu.append(tuple(one for one in found if one[1].value > 0 or not context.rules.pinned.isdisjoint(one[0])))
    return _Block(nodes, tuple(menu), context.rules.pinned)


def _priced(
    context: SearchContext, blocks: Sequence[_Block], conditions: AveragingLimits, most: int
) -> tuple[float, list[tuple[EstimatedGroup, ...]]]:
    """Return the best price found, and the clusters of each block that are worth it.

    Of the prices at which there are more than `most` clusters, only the highest is tried, and no lower one.
    """
    dearest = max((one.value for block in blocks for _, one in block.dearest), default=0.0)
    score = context.score(conditions, Totals())
    best_score, answer = -1.0, (0.0, [block.bought(0.0) for block in blocks])
    for price in (*np.geomspace(dearest, dearest * LEAST_PRICE, PRICES).tolist(), 0.0) if dearest > 0 else ():
        chosen = [block.bought(price) for block in blocks]
        worth = score(Totals().plus(one for offer in chosen for _, one in offer))
        if worth > best_score:
            best_score, answer = worth, (price, chosen)
        if sum(map(len, chosen)) > most:
            break
    return answer


def _start(block: _Block, offer: tuple[EstimatedGroup, ...], price: float) -> tuple[Group, ...]:
    """Return the groups from which a search in the block begins.

    There are none where the block's best cluster is not nearly worth the price.
    """
    hopeful = offer or tuple(one for one in block.dearest if one[1].value >= HOPEFUL * price)
    return tuple(group for group, _ in hopeful)


def _round(
    context: SearchContext, blocks: Sequence[Group], starts: Sequence[tuple[Group, ...]], conditions: AveragingLimits
) -> tuple[list[Group], int]:
    """Return all clusters after a search in each block that has any, and the number of blocks searched."""
    estimator = context.estimator(sum(map(len, starts)), conditions)
    mine = [Totals().plus(estimator.of(groups)) for groups in starts]
    everyone = Totals().plus(one for groups in starts for one in estimator.of(groups))
    found: list[tuple[Group, ...]] = []
    for nodes, groups, before in zip(blocks, starts, mine, strict=True):
        if not groups:
            continue
        others = everyone.minus(before)
        groups, _ = context.searched(nodes, groups, conditions, others, BLOCK_ESTIMATES_PER_NODE)
        everyone = Totals(*(a + b for a, b in zip(others, Totals().plus(estimator.of(groups)), strict=True)))
        found.append(groups)
    return [group for groups in found for group in groups], len(found)


def _counts(nodes: int, least: int) -> Iterator[int]:
    """Return the numbers of clusters to try, from few to many."""
    k = max(1, nodes // LARGEST_MEAN)
    while k <= nodes // least:
        yield k
        k += max(1, int(k * STEP))


def blocks_of(points: Floats, nodes: Sequence[int], fraction: float = 0.5) -> list[Group]:
    """Divide `nodes` (row indices of `points`) into blocks, each sorted.

    The blocks are of nearly equal size if each cut is at half of the nodes.
    """
    if len(nodes) <= LARGEST:
        return [tuple(sorted(nodes))]
    centred = points[list(nodes)] - points[list(nodes)].mean(axis=0)
    axis = largest_eigenvectors(centred.T @ centred, 1)[1][:, 0]
    along = np.argsort(centred @ axis, kind="stable")
    part = round(fraction * len(nodes))
    return [
        block
        for side in (along[:part], along[part:])
        for block in blocks_of(points, [nodes[i] for i in side], fraction)
    ]


def joined(blocks: Sequence[Group], atoms: Sequence[Group]) -> list[Group]:
    """Return the blocks with each atom (nodes that stay together) moved to the block of its first node."""
    home = {node: i for i, block in enumerate(blocks) for node in block}
    for atom in atoms:
        home |= {node: home[atom[0]] for node in atom[1:] if node in home and atom[0] in home}
    members: list[list[int]] = [[] for _ in blocks]
    for node, i in home.items():
        members[i].append(node)
    return [tuple(sorted(block)) for block in members]
