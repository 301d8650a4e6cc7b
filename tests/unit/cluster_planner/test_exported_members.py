import cluster_planner


def test_every_exported_name_exists_and_is_listed_once() -> None:
    names = cluster_planner.__all__
    assert len(set(names)) == len(names)
    assert [name for name in names if not hasattr(cluster_planner, name)] == []


def test_what_a_program_needs_is_exported() -> None:
    needed = {"Fleet", "ModelCosts", "Plan", "Workload", "load_fleet", "load_plan", "make_plan", "predict", "save_plan"}
    assert needed <= set(cluster_planner.__all__)
