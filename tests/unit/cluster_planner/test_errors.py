from cluster_planner.errors import InvalidInput, NoFeasiblePlan, PlannerError


def test_a_message_names_file_and_key() -> None:
    error = InvalidInput("must be above 0", path="nodes.yaml", key="nodes[2].up_mbps")
    assert str(error) == "nodes.yaml: nodes[2].up_mbps: must be above 0"
    assert (error.path, error.key, error.exit_code) == ("nodes.yaml", "nodes[2].up_mbps", 2)


def test_several_problems_give_a_line_each() -> None:
    error = InvalidInput.several([("a", "one"), (None, "two")], path="f")
    assert str(error) == "f: a: one\nf: two"
    assert error.key == "a"


def test_one_base_catches_all() -> None:
    assert issubclass(NoFeasiblePlan, InvalidInput)
    assert issubclass(InvalidInput, PlannerError)
