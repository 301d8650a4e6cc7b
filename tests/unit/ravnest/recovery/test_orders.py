from ravnest.recovery import Nodes, Place, place
from ravnest.recovery.orders import StartCluster
from tests.support.local import setups_of, tiny_job


def test_an_order_to_start_has_the_plan_of_its_placement() -> None:
    _, plan = setups_of(tiny_job(), parts=(2, 1))
    found = place(plan, "c0", Nodes([stage.node for stage in plan.cluster("c0").stages]), ["c1"])
    assert isinstance(found, Place)
    assert StartCluster("c0", found.placement, found.reason, 60.0).plan == plan
