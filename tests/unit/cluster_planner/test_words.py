from cluster_planner.words import rate


def test_rate_keeps_three_figures() -> None:
    assert [rate(12345.6), rate(99.6), rate(0.12345)] == ["12,346", "99.6", "0.123"]
