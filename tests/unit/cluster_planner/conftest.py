"""Small worlds that the planner's tests share: builders of nodes, models and workloads."""

from collections.abc import Callable

import pytest

from cluster_planner import Fleet, ModelCosts, Node, RegionLink, Unit, Workload


def node(name: str, **changes: object) -> Node:
    values: dict[str, object] = {
        "flops_per_s": 1e10,
        "memory_bytes": 10**9,
        "up_bytes_per_s": 5e6,
        "down_bytes_per_s": 2e7,
    }
    return Node(name=name, **{**values, **changes})  # type: ignore[arg-type]


def model(count: int = 8, **changes: object) -> ModelCosts:
    values: dict[str, object] = {
        "flops": 1e8,
        "parameter_bytes": 10**6,
        "saved_bytes": 10**5,
        "boundary_bytes": 10**4,
        "boundary_gradient_bytes": 10**4,
    }
    units = tuple(Unit(name=f"u{i}", **{**values, **changes}) for i in range(count))  # type: ignore[arg-type]
    return ModelCosts(units, "fingerprint")


def workload(**changes: object) -> Workload:
    values: dict[str, object] = {
        "micro_batch": 4,
        "update_every": 4,
        "max_staleness": 1,
        "average_every": 1024,
        "max_lag": 1,
        "optimizer_state_bytes_per_parameter_byte": 2.0,
        "process_bytes": 10**8,
    }
    return Workload(**{**values, **changes})  # type: ignore[arg-type]


def two_regions() -> Fleet:
    """Three fast nodes in one place, three slower ones 40 ms away, all well connected."""
    rates = {"up_bytes_per_s": 2.5e7, "down_bytes_per_s": 6.25e7}
    fast = [node(f"fast{i}", flops_per_s=g * 1e9, region="fra", **rates) for i, g in enumerate((60, 50, 40))]
    slow = [node(f"slow{i}", flops_per_s=g * 1e9, region="iad", **rates) for i, g in enumerate((25, 20, 15))]
    return Fleet(
        (*fast, *slow),
        (),
        (
            RegionLink("fra", "iad", 0.04, 3.75e7),
            RegionLink("fra", "fra", 0.002, 1e8),
            RegionLink("iad", "iad", 0.003, 1e8),
        ),
    )


def small_gpt(layers: int = 6, width: int = 128, context: int = 128, words: int = 256) -> ModelCosts:
    """A small GPT's costs by hand: four units a layer, an embedding and a head."""
    alive = context * width * 4
    sizes = [("embed", 2.0 * context * width, (words + context) * width, alive)]
    for i in range(layers):
        sizes += [
            (f"{i}.qkv", 6.0 * context * width**2, 3 * width**2, 4 * alive),
            (
                f"{i}.attention",
                4.0 * context**2 * width + 2.0 * context * width**2,
                width**2,
                2 * alive + 32 * context**2,
            ),
            (f"{i}.up", 8.0 * context * width**2, 4 * width**2, 5 * alive),
            (f"{i}.down", 8.0 * context * width**2, 4 * width**2, 4 * alive),
        ]
    sizes += [
        ("norm", 5.0 * context * width, width, alive),
        ("head", 2.0 * context * width * words, words * width, 0),
    ]
    return ModelCosts(
        tuple(
            Unit(
                name=name,
                flops=flops,
                parameter_bytes=4 * parameters,
                saved_bytes=saved,
                boundary_bytes=alive,
                boundary_gradient_bytes=alive,
            )
            for name, flops, parameters, saved in sizes
        ),
        "gpt",
    )


@pytest.fixture(scope="session")
def make_node() -> Callable[..., Node]:
    return node


@pytest.fixture(scope="session")
def make_model() -> Callable[..., ModelCosts]:
    return model


@pytest.fixture(scope="session")
def make_workload() -> Callable[..., Workload]:
    return workload


@pytest.fixture(scope="session")
def home() -> Fleet:
    return two_regions()


@pytest.fixture(scope="session")
def gpt() -> ModelCosts:
    return small_gpt()
