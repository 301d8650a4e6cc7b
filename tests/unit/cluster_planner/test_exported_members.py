import cluster_planner


def test_the_public_surface_is_what_it_says() -> None:
    assert sorted(cluster_planner.__all__) == cluster_planner.__all__
    assert all(hasattr(cluster_planner, name) for name in cluster_planner.__all__)
