"""Large fleets in blocks, so that a search need not compare everyone with everyone.

Decides the blocks: nodes are divided along the direction in which their coordinates differ most, at the median unless
asked otherwise, until no block has more than LARGEST nodes. Knows points only.
"""

from collections.abc import Sequence

import numpy as np

from cluster_planner.inputs.spans import Floats

LARGEST = 120

Group = tuple[int, ...]


def blocks_of(points: Floats, nodes: Sequence[int], fraction: float = 0.5) -> list[Group]:
    """`nodes` (rows of `points`) in blocks, each sorted; of nearly equal size if each cut is at half of them."""
    if len(nodes) <= LARGEST:
        return [tuple(sorted(nodes))]
    centred = points[list(nodes)] - points[list(nodes)].mean(axis=0)
    axis = np.linalg.eigh(centred.T @ centred)[1][:, -1]
    along = np.argsort(centred @ axis, kind="stable")
    part = round(fraction * len(nodes))
    return [
        block
        for side in (along[:part], along[part:])
        for block in blocks_of(points, [nodes[i] for i in side], fraction)
    ]


def joined(blocks: Sequence[Group], atoms: Sequence[Group]) -> list[Group]:
    """The blocks, each atom (nodes that stay together) in the block of its first node."""
    home = {node: i for i, block in enumerate(blocks) for node in block}
    for atom in atoms:
        home |= {node: home[atom[0]] for node in atom[1:] if node in home and atom[0] in home}
    members: list[list[int]] = [[] for _ in blocks]
    for node, i in home.items():
        members[i].append(node)
    return [tuple(sorted(block)) for block in members]
