from cluster_planner.search.steps import Step


def test_a_step_is_one_line() -> None:
    assert str(Step("k-means", "3 clusters", 0.0, 0.0)) == "k-means: 3 clusters"
    assert str(Step("local search", "2 clusters", 12.5, 0.5)) == "local search: 2 clusters; best so far 12.5"
