from cluster_planner.formatting import counted, rate


def test_rate_keeps_three_figures() -> None:
    assert [rate(12345.6), rate(99.6), rate(0.12345)] == ["12,346", "99.6", "0.123"]


def test_one_is_singular_and_all_else_plural() -> None:
    assert [counted(n, "cluster") for n in (0, 1, 2, 1000)] == [
        "0 clusters",
        "1 cluster",
        "2 clusters",
        "1,000 clusters",
    ]
