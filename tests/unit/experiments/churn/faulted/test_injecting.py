"""What a lost cluster makes again is what was lost with it."""

from typing import Any

from experiments.churn.faulted.injecting import UPDATE_SAMPLES, made_again


def update(cluster: str, number: int) -> dict[str, Any]:
    return {"kind": "update", "cluster": cluster, "update": number, "samples": 16 * number}


def lost(cluster: str) -> dict[str, Any]:
    return {"kind": "lost", "cluster": cluster, "samples": 1856}


def again(*records: dict[str, Any], since: int = 0) -> list[int]:
    """What is made again, by records of which one comes each second."""
    return made_again([(float(second), one) for second, one in enumerate(records)], float(since))


def test_the_updates_that_its_successor_makes_anew_are_counted() -> None:
    made = update("c0", 7), update("c1", 9)

    assert again(*made, lost("c0"), update("c1", 10), update("c0", 5)) == [3 * UPDATE_SAMPLES]
    assert again(*made, lost("c0"), update("c0", 8), update("c0", 9)) == [0]
    assert again(*made, lost("c0")) == []


def test_neither_losses_before_nor_those_before_a_beginning_anew_count() -> None:
    made = update("c0", 7), lost("c0")

    assert again(*made, update("c0", 5), since=2) == []
    assert again(*made, {"kind": "restarted"}, update("c0", 3)) == []
