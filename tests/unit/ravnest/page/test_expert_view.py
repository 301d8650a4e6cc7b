from ravnest.page.expert_view import MOST_GRIDS, ExpertViews

HOST = {"host": "attic.00", "experts": 3, "most_experts": 8, "samples_per_s": 20.0, "answer_s": 0.01, "updates": 7}
STAGES = {
    "c0.s1": {"batches": 4, "waited_s": 2.0, "requests": 32, "dropped": 1},
    "c1.s1": {"batches": 6, "waited_s": 3.0, "requests": 48, "dropped": 3},
}


def test_a_grid_is_shown_with_its_hosts_and_the_wait_of_a_micro_batch() -> None:
    views = ExpertViews()
    assert views.rows() == []
    views.take({"grids": [{"grid": "digits", "places": 16, "hosts": [HOST, HOST], "stages": STAGES}]})
    (row,) = views.rows()
    assert row == {
        "grid": "digits",
        "experts": 16,
        "hosted": 6,
        "requests": 80,
        "dropped": 4,
        "wait_s": 0.5,
        "hosts": [HOST, HOST],
    }


def test_what_does_not_fit_is_left_out() -> None:
    views = ExpertViews()
    for grids in (None, 3, [None], [{"grid": "a", "hosts": [1, {"host": 5}], "stages": [2]}]):
        views.take({"grids": grids})
    (row,) = views.rows()
    assert (row["grid"], row["hosted"], row["wait_s"]) == ("a", 0.0, None)
    assert row["hosts"] == [
        {"host": "5", **dict.fromkeys(["experts", "most_experts", "samples_per_s", "answer_s"]), "updates": None}
    ]
    for number in range(2 * MOST_GRIDS):
        views.take({"grids": [{"grid": str(number)}]})
    assert len(views.rows()) == MOST_GRIDS
