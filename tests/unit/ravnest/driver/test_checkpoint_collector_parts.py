import pytest

from ravnest.driver.checkpoint_collector import parts_of_stages
from tests.support.local import parts_of_plan, setups_of, tiny_job


@pytest.mark.parametrize("parts", [(2, 1), (3, 2, 1)])
def test_the_plan_and_its_stages_tell_the_same(parts: tuple[int, ...]) -> None:
    setups, plan = setups_of(tiny_job(), parts=parts)
    assert parts_of_plan(plan) == parts_of_stages(setups.values())


def test_every_ring_has_a_segment_and_every_stage_an_optimizer() -> None:
    _, plan = setups_of(tiny_job(), parts=(2, 1))
    assert sorted(parts_of_plan(plan)) == [
        "optimizer-c0-000.safetensors",
        "optimizer-c0-001.safetensors",
        "optimizer-c1-000.safetensors",
        "segment-000.safetensors",
        "segment-001.safetensors",
    ]


def test_averaged_copies_are_a_segment_that_only_the_stages_know() -> None:
    setups, plan = setups_of(tiny_job(model={"factory": "tied:gpt"}, tied="averaged"), parts=(3, 2, 1))
    assert parts_of_stages(setups.values()) - parts_of_plan(plan) == {f"segment-{len(plan.rings):03d}.safetensors"}
