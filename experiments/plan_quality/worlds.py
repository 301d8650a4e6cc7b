"""The fleets and the model that plans are made for: nodes with mixed GPUs in cloud regions all over the world.

Decides the figures. Regions, delays and rates come from a file as DT-FM published them, if one is given; else from a
made-up world of as many regions on a sphere, whose delay grows and whose rate falls with distance. The model's costs
are those of a GPT of 1.3 billion parameters, computed by hand. All by seed.
"""

import math
import re
from collections.abc import Mapping
from pathlib import Path

import numpy as np

from cluster_planner import Fleet, ModelCosts, Node, RegionLink, Unit, Workload

GPUS = ((4e12, 15), (6e12, 12), (8e12, 16), (12e12, 24), (14e12, 24), (30e12, 40))
"""Sustained FLOP/s and memory in GB: from a T4 to an A100."""

UPLINKS = (6.25e7, 1.25e8, 2.5e8, 6.25e8)
"""Bytes/s: 0.5 to 5 Gbit/s."""

REGIONS = 10
PAIR = re.compile(r"^\s+(\w+)-(\w+): \[([\d.]+), ([\d.]+)\]$", re.MULTILINE)
WITHIN = re.compile(r"^within_region: \[([\d.]+), ([\d.]+)\]$", re.MULTILINE)

Pairs = Mapping[tuple[str, str], tuple[float, float]]
"""Pair of regions → delay in ms and Gbit/s."""


def read_regions(path: Path) -> Pairs:
    """The pairs of a file such as world_regions.yaml. Raises ValueError where it names none."""
    text = path.read_text(encoding="utf-8")
    pairs = {(a, b): (float(ms), float(gbit)) for a, b, ms, gbit in PAIR.findall(text)}
    within = WITHIN.search(text)
    if not pairs or within is None:
        raise ValueError(f"{path}: expected `within_region: [ms, Gbit/s]`, and pairs such as `A-B: [67, 0.79]`")
    own = (float(within[1]), float(within[2]))
    return {**pairs, **{(name, name): own for name in dict.fromkeys(name for pair in pairs for name in pair)}}


def made_up_regions(seed: int = 0) -> Pairs:
    """REGIONS places on a sphere: 3 ms and 1 ms for each 110 km, 1.2 Gbit/s that fall to 0.3 at the other end."""
    points = np.random.default_rng(seed).normal(size=(REGIONS, 3))
    points /= np.linalg.norm(points, axis=1)[:, None]
    names = [f"region{i}" for i in range(REGIONS)]
    pairs = {(name, name): (5.0, 2.0) for name in names}
    for i in range(REGIONS):
        for j in range(i):
            apart = math.acos(max(-1.0, min(1.0, float(points[i] @ points[j])))) / math.pi
            pairs[names[j], names[i]] = (3.0 + 180.0 * apart, 1.2 - 0.9 * apart)
    return pairs


def world(nodes: int, pairs: Pairs, seed: int = 0) -> Fleet:
    """`nodes` of mixed GPUs and uplinks, spread over the regions."""
    random = np.random.default_rng(seed)
    regions = sorted({name for pair in pairs for name in pair})
    chosen = []
    for i in range(nodes):
        flops_per_s, memory_gb = GPUS[random.integers(len(GPUS))]
        rate = UPLINKS[random.integers(len(UPLINKS))]
        chosen.append(
            Node(
                name=f"n{i:05}",
                flops_per_s=flops_per_s * float(random.uniform(0.8, 1.0)),
                memory_bytes=memory_gb * 10**9,
                up_bytes_per_s=rate,
                down_bytes_per_s=2 * rate,
                region=regions[i % len(regions)],
            )
        )
    used = {node.region for node in chosen}
    links = [RegionLink(a, b, ms / 1e3, gbit * 1.25e8) for (a, b), (ms, gbit) in pairs.items() if {a, b} <= used]
    return Fleet(tuple(chosen), (), tuple(links))


def gpt(layers: int = 24, width: int = 2048, context: int = 1024, words: int = 50_000) -> ModelCosts:
    """Two units a layer, an embedding and a head; weights and activations in float32."""
    alive = 4 * context * width
    units = [_unit("embed", 0.0, words * width, alive, alive)]
    for i in range(layers):
        attention = 8.0 * context * width**2 + 4.0 * context**2 * width
        units.append(_unit(f"{i}.attention", attention, 4 * width**2, 6 * alive, alive))
        units.append(_unit(f"{i}.mlp", 16.0 * context * width**2, 8 * width**2, 6 * alive, alive))
    units.append(_unit("head", 2.0 * context * width * words, words * width, alive, 0))
    return ModelCosts(tuple(units), "gpt")


def _unit(name: str, flops: float, parameters: int, saved: int, alive: int) -> Unit:
    return Unit(
        name=name,
        flops=flops,
        parameter_bytes=4 * parameters,
        saved_bytes=saved,
        boundary_bytes=alive,
        boundary_gradient_bytes=alive,
    )


def workload() -> Workload:
    """Rounds of 32,768 samples, which are worth their bytes; int8 there, bfloat16 between stages."""
    return Workload(
        micro_batch=2,
        update_every=16,
        max_staleness=1,
        average_every=32_768,
        max_lag=1,
        optimizer_state_bytes_per_parameter_byte=2.0,
        process_bytes=400_000_000,
        averaged_bytes_per_parameter_byte=0.25,
        activation_wire_ratio=0.5,
        gradient_wire_ratio=0.5,
    )
