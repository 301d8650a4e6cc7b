from cluster_planner.advice.suggestion import Suggestion, most_of


def test_the_least_size_that_brings_most_of_the_gain_is_suggested() -> None:
    sizes = [Suggestion(str(n), 0.0, worth, None) for n, worth in ((2, 150.0), (4, 196.0), (8, 200.0))]
    chosen = most_of(sizes, 100.0)
    assert chosen is sizes[1]
    assert most_of(sizes, 199.0) is None
    assert most_of([], 100.0) is None
