from experiments.experts.beam import search


def test_the_best_experts_of_a_grid_are_found_from_nodes_that_know_nothing_of_it() -> None:
    found = search(40, 4, 3)
    assert found.found >= 0.5  # a beam may miss some
    assert len(found.seconds) == 3
    assert all(0.0 < one < 20.0 for one in found.seconds)
