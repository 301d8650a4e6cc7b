from cluster_planner.formatting import format_count, format_rate


def test_rate_keeps_three_figures() -> None:
    assert [format_rate(12345.6), format_rate(99.6), format_rate(0.12345)] == ["12,346", "99.6", "0.123"]


def test_one_is_singular_and_all_else_plural() -> None:
    assert [format_count(n, "cluster") for n in (0, 1, 2, 1000)] == [
        "0 clusters",
        "1 cluster",
        "2 clusters",
        "1,000 clusters",
    ]
