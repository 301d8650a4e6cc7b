import pytest

from ravnest.errors import InvalidInput
from ravnest.simulator import BandwidthChange, Scenario, Stall, StallRate


@pytest.mark.parametrize(
    ("given", "key"),
    [
        ({"compute_jitter": -0.1}, "compute_jitter"),
        ({"link_jitter_s": float("nan")}, "link_jitter"),
        ({"stalls": (Stall("n0", -1.0, 1.0),)}, r"stalls\[0\].at_s"),
        ({"stalls": (Stall("n0", 1.0, 0.0),)}, r"stalls\[0\].for_s"),
        ({"stall_rates": (StallRate(0.0, 1.0),)}, r"stall_rates\[0\].per_hour"),
        ({"bandwidth": (BandwidthChange(1.0, up=0.0),)}, r"bandwidth\[0\].up"),
    ],
)
def test_what_cannot_be_is_refused_by_key(given: dict[str, object], key: str) -> None:
    with pytest.raises(InvalidInput, match=key):
        Scenario(**given)  # type: ignore[arg-type]


def test_nodes_have_to_be_in_the_plan_and_at_work() -> None:
    scenario = Scenario(stalls=(Stall("n0", 1.0, 1.0),), bandwidth=(BandwidthChange(1.0, nodes=("n1", "n2")),))
    scenario.require_nodes({"n0", "n1", "n2"}, set())
    with pytest.raises(InvalidInput, match=r"bandwidth\[0\].nodes: no node of the plan is named 'n2'"):
        scenario.require_nodes({"n0", "n1"}, set())
    with pytest.raises(InvalidInput, match=r"stalls\[0\].node: 'n0' runs no stage"):
        scenario.require_nodes({"n1", "n2"}, {"n0"})


def test_a_stage_in_place_of_a_node_gets_a_hint() -> None:
    for name in ("c0.1", "c0.s1"):
        with pytest.raises(InvalidInput) as caught:
            Scenario(stalls=(Stall(name, 1.0, 1.0),)).require_nodes({"n0"}, set())
        assert caught.value.hint is not None
        assert "c0.s1" in caught.value.hint


def test_what_comes_after_the_end_is_named() -> None:
    scenario = Scenario(
        stalls=(Stall("n0", 1.0, 1.0), Stall("n1", 60.0, 5.0)),
        bandwidth=(BandwidthChange(90.5, up=0.5), BandwidthChange(99.0, up=0.5, nodes=("n1", "n2"))),
    )
    assert scenario.after(100.0) == []
    assert scenario.after(60.0) == [
        "stalls[1] (n1 at 60 s)",
        "bandwidth[0] (every node at 90.5 s)",
        "bandwidth[1] (n1, n2 at 99 s)",
    ]
