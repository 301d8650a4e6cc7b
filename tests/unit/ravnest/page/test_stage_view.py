import pytest

from ravnest.page.plan_facts import StageFacts
from ravnest.page.stage_view import SILENT_S, StageView, number


@pytest.fixture
def stage() -> StageView:
    return StageView(StageFacts("c0.s1", "desk", (2, 5), lambda window: 100 * window, 800), "desk", (2, 5), 500)


def shares(compute: float, **waiting: float) -> dict[str, object]:
    return {"compute": compute, "averaging": 0.01, "bubble": sum(waiting.values()), "waiting": waiting}


def test_it_works_or_waits_by_where_its_time_goes(stage: StageView) -> None:
    assert stage.state("trains", 0.0) == "starts"
    stage.timed(shares(0.8, window=0.1), 1.0)
    assert stage.state("trains", 1.0) == "works"
    for second in range(2, 12):
        stage.timed(shares(0.1, window=0.2, lag=0.6), second)
    assert stage.state("trains", 12.0) == "waits"
    told = stage.document("waits")
    assert told["waits_for"] == "lag"
    assert told["waits_share"] == pytest.approx(0.6, abs=0.01)
    assert told["busy"] == pytest.approx(0.1, abs=0.01)


def test_one_that_says_nothing_is_silent_unless_its_cluster_says_why(stage: StageView) -> None:
    stage.timed(shares(0.8), 1.0)
    assert stage.state("trains", 1.5 + SILENT_S) == "silent"
    assert stage.state("lost", 1.5 + SILENT_S) == "lost"


def test_staleness_memory_and_updates_are_told(stage: StageView) -> None:
    stage.updated({"update": 6, "staleness": [1, 0, 2]})
    stage.updated({"update": 7, "staleness": [1, 0]})
    stage.measured({"tensor_bytes": {"weights": 100, "gradients": 50}})
    stage.measured({"process_bytes": 7000})
    stage.measured({"splits": True})
    told = stage.document("works")
    assert (told["staleness"], told["max_staleness"], told["updates"]) == (0.5, 2, 8)
    assert (told["tensor_bytes"], told["planned_tensor_bytes"], told["process_bytes"]) == (150, 500, 7000)
    assert told["splits_backward"] is True


def test_what_does_not_fit_is_left_out(stage: StageView) -> None:
    stage.updated({"update": "x", "staleness": ["a", None]})
    stage.timed({"compute": None, "waiting": [1]}, 1.0)
    stage.measured({"tensor_bytes": 5, "process_bytes": "x", "splits": 1})
    told = stage.document("works")
    assert (told["updates"], told["staleness"], told["tensor_bytes"], told["waits_for"]) == (0, None, None, None)
    assert [number(each) for each in ("5", 10**400, float("nan"), float("inf"))] == [None] * 4
