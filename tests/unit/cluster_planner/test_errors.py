from cluster_planner.errors import InvalidInput, NoFeasiblePlan


def test_a_plan_that_cannot_be_is_a_mistake_in_the_input() -> None:
    assert issubclass(NoFeasiblePlan, InvalidInput)
    assert NoFeasiblePlan("no cluster can hold the model").exit_code == 2
