"""What of a nodes.yaml is possible, and hardly meant: a unit mistaken by powers of ten, a cap that caps nothing.

Decides from where on a figure is doubted. None is refused: one day machines may have it. Knows the file's units only.
"""

from cluster_planner.files import schema
from cluster_planner.formatting import counted

MOST_GFLOPS = 1e8
MOST_MEMORY_GB = 16e3
MOST_MBPS = 1e5
SHOWN = 8
"""Of more remarks than this, it is only told how many they are."""


def remarks(entry: schema.FleetFile) -> list[str]:
    """One line for each thing that is hardly meant, with its key."""
    said = []
    for i, node in enumerate(entry.nodes):
        for key, value, most, unit in (
            ("gflops", node.gflops, MOST_GFLOPS, "GFLOP/s"),
            ("memory_gb", node.memory_gb, MOST_MEMORY_GB, "GB"),
            ("up_mbps", node.up_mbps, MOST_MBPS, "Mbit/s"),
            ("down_mbps", node.down_mbps, MOST_MBPS, "Mbit/s"),
        ):
            if value > most:
                said.append(f"nodes[{i}].{key}: {value:,.10g} {unit} of {node.name} is more than any machine has")
    for kind, links in (("links", entry.links), ("regions", entry.regions)):
        said += [
            f"{kind}[{i}].mbps: {link.mbps:,.10g} Mbit/s between {' and '.join(link.between)} is more than any link has"
            for i, link in enumerate(links)
            if link.mbps > MOST_MBPS
        ]
    named = {node.name: node for node in entry.nodes}
    for i, cap in enumerate(entry.constraints.cap):
        node = named[cap.node]
        for key, capped, has in (
            ("memory_gb", cap.memory_gb, node.memory_gb),
            ("up_mbps", cap.up_mbps, node.up_mbps),
        ):
            if capped is not None and capped > has:
                said.append(f"constraints.cap[{i}].{key}: {capped:,.10g} caps nothing: {node.name} has {has:,.10g}")
    return said if len(said) <= SHOWN else [*said[:SHOWN], f"and {counted(len(said) - SHOWN, 'remark')} more"]
