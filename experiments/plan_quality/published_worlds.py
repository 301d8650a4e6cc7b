"""The worlds of DT-FM: equal GPUs, 64 but for the last, whose links are those of its published scheduler.

Decides the figures. Delays and rates are those of scheduler/heuristic_evolutionary_solver/config.py in
github.com/DS3Lab/DT-FM; the GPUs' speed and memory are stated here, since that scheduler counts neither. A machine of
several GPUs is a region: its GPUs reach each other at the rate of NVLink, and each has an uplink of its own, as there.

    datacenter     8 machines of 8 GPUs, 25 Gbit/s between them, no delay
    spot           8 machines of 4 GPUs and 32 of one, 10 Gbit/s between them
    universities   two of 32 GPUs, 5 Gbit/s within and 1.12 Gbit/s and 11 ms between them
    regional       four regions of the United States, 16 GPUs each, 2 Gbit/s and 5 ms within
    worldwide      eight regions on three continents, 8 GPUs each, 2 Gbit/s and 5 ms within
    homogeneous    1 Gbit/s and 50 ms between any two
    ten cities     all ten regions of its table, which that file has as a comment, in turn: 6 or 7 GPUs each
    line           its eight nodes for finding mistakes: 5 Gbit/s and 1 ms, but slower from each to the next
"""

from collections.abc import Mapping, Sequence

from cluster_planner import Fleet, Link, Node, RegionLink

GPU_FLOPS_PER_S = 2.5e13
"""What a V100 sustains."""
GPU_MEMORY_BYTES = 32 * 10**9
NODES = 64
FASTEST_GBPS = 100.0

Rates = Mapping[tuple[str, str], tuple[float, float]]
"""Pair of regions → one-way delay in ms and Gbit/s."""

UNITED_STATES: Rates = {
    ("Virginia", "Oregon"): (67, 1.15),
    ("Virginia", "California"): (59, 1.05),
    ("Virginia", "Ohio"): (11, 1.12),
    ("Oregon", "California"): (12, 1.25),
    ("Oregon", "Ohio"): (49, 1.10),
    ("California", "Ohio"): (52, 1.02),
}

CITIES = ("Oregon", "Virginia", "Ohio", "Tokyo", "Seoul", "London", "Frankfurt", "Ireland")

WORLD: Rates = {
    ("Oregon", "Virginia"): (67, 0.79),
    ("Oregon", "Ohio"): (49, 1.10),
    ("Oregon", "Tokyo"): (96, 0.523),
    ("Oregon", "Seoul"): (124, 0.46),
    ("Oregon", "London"): (136, 0.42),
    ("Oregon", "Frankfurt"): (143, 0.404),
    ("Oregon", "Ireland"): (124, 0.482),
    ("Virginia", "Ohio"): (11, 1.12),
    ("Virginia", "Tokyo"): (143, 0.524),
    ("Virginia", "Seoul"): (172, 0.500),
    ("Virginia", "London"): (76, 1.16),
    ("Virginia", "Frankfurt"): (90, 1.02),
    ("Virginia", "Ireland"): (67, 1.05),
    ("Ohio", "Tokyo"): (130, 0.694),
    ("Ohio", "Seoul"): (159, 0.529),
    ("Ohio", "London"): (86, 1.05),
    ("Ohio", "Frankfurt"): (99, 0.799),
    ("Ohio", "Ireland"): (77, 1.14),
    ("Tokyo", "Seoul"): (34, 1.10),
    ("Tokyo", "London"): (210, 0.366),
    ("Tokyo", "Frankfurt"): (223, 0.36),
    ("Tokyo", "Ireland"): (199, 0.465),
    ("Seoul", "London"): (238, 0.342),
    ("Seoul", "Frankfurt"): (235, 0.358),
    ("Seoul", "Ireland"): (228, 0.335),
    ("London", "Frankfurt"): (14, 1.14),
    ("London", "Ireland"): (12, 1.09),
    ("Frankfurt", "Ireland"): (24, 1.08),
}

FURTHER: Rates = {
    ("Oregon", "Singapore"): (163, 0.341),
    ("Oregon", "Sydney"): (139, 0.36),
    ("Virginia", "Singapore"): (230, 0.364),
    ("Virginia", "Sydney"): (197, 0.383),
    ("Ohio", "Singapore"): (197, 0.452),
    ("Ohio", "Sydney"): (185, 0.484),
    ("Tokyo", "Singapore"): (73, 1.01),
    ("Tokyo", "Sydney"): (100, 0.761),
    ("Seoul", "Singapore"): (74, 1.14),
    ("Seoul", "Sydney"): (148, 0.58),
    ("London", "Singapore"): (169, 0.500),
    ("London", "Sydney"): (262, 0.326),
    ("Frankfurt", "Singapore"): (155, 0.535),
    ("Frankfurt", "Sydney"): (265, 0.328),
    ("Ireland", "Singapore"): (179, 0.492),
    ("Ireland", "Sydney"): (254, 0.344),
    ("Singapore", "Sydney"): (92, 0.816),
}
"""What the other two cities have with the eight, and with each other."""


def published_worlds() -> dict[str, Fleet]:
    """Return DT-FM's worlds by name."""
    regional = ("Virginia", "Oregon", "California", "Ohio")
    every = (*CITIES, "Singapore", "Sydney")
    return {
        "datacenter": _fleet({f"machine{i}": 8 for i in range(8)}, (0.05, 100.0), other=(0.1, 3.125)),
        "spot": _fleet(
            {**{f"machine{i}": 4 for i in range(8)}, **{f"single{i}": 1 for i in range(32)}},
            (0.05, 100.0),
            other=(0.1, 1.25),
        ),
        "universities": _fleet({"Ohio": 32, "Virginia": 32}, (1.0, 5.0), {("Ohio", "Virginia"): (11, 1.12)}),
        "regional": _fleet(dict.fromkeys(regional, 16), (5.0, 2.0), UNITED_STATES),
        "worldwide": _fleet(dict.fromkeys(CITIES, 8), (5.0, 2.0), WORLD),
        "homogeneous": _fleet({"anywhere": 64}, (50.0, 1.0)),
        "ten cities": _fleet(
            {city: 7 if i < 4 else 6 for i, city in enumerate(every)}, (5.0, 2.0), {**WORLD, **FURTHER}
        ),
        "line": _line(),
    }


def _line() -> Fleet:
    plain = _fleet({"line": 8}, (1.0, 5.0))
    names = plain.names
    slower = [Link(names[i], names[i + 1], 5e-3 * (i + 1), (10 - i) // 2 * 1.25e8) for i in range(7)]
    return Fleet(plain.nodes, tuple(slower), plain.regions)


def _fleet(
    sizes: Mapping[str, int],
    within: tuple[float, float],
    between: Rates | None = None,
    other: tuple[float, float] | None = None,
) -> Fleet:
    """A fleet of regions of these sizes. `within` a region, `between` pairs, and all `other` pairs: (ms, Gbit/s)."""
    nodes = [
        Node(
            name=f"{region.lower()}-{i}",
            flops_per_s=GPU_FLOPS_PER_S,
            memory_bytes=GPU_MEMORY_BYTES,
            up_bytes_per_s=FASTEST_GBPS * 1.25e8,
            down_bytes_per_s=FASTEST_GBPS * 1.25e8,
            region=region,
        )
        for region, size in sizes.items()
        for i in range(size)
    ]
    pairs: dict[tuple[str, str], tuple[float, float]] = {(region, region): within for region in sizes}
    regions: Sequence[str] = list(sizes)
    if other is not None:
        pairs |= {(a, b): other for i, a in enumerate(regions) for b in regions[i + 1 :]}
    pairs |= dict(between or {})
    links = tuple(RegionLink(a, b, ms / 1e3, gbps * 1.25e8) for (a, b), (ms, gbps) in pairs.items())
    return Fleet(tuple(nodes), (), links)
