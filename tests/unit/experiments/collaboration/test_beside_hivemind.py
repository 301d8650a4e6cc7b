import pytest

from experiments.collaboration.beside_hivemind import Averagings, failure, of_steps
from experiments.collaboration.beside_hivemind import part as part_of


def test_only_the_last_steps_count_and_one_without_all_volunteers_has_failed() -> None:
    steps = [{"step": at, "seconds": float(at), "peers": 3 if at == 4 else 4} for at in range(1, 6)]
    found = of_steps(steps, 4, 3)
    assert found.seconds == [3.0, 5.0]
    assert found.failed == 1
    assert found.why == "step 4: 3 of 4 volunteers"


@pytest.mark.parametrize(
    ("answer", "wrong"),
    [
        ({"together": 4, "off": 0.001}, None),
        ({"together": 3, "off": 0.5}, "a group of 3 of 4"),
        ({"together": 4, "off": 0.5}, "a number is off the mean by 0.5"),
        ({"together": 0, "error": "AllreduceException()"}, "AllreduceException()"),
    ],
)
def test_an_averaging_has_failed_unless_each_peer_has_the_mean_of_all(
    answer: dict[str, object], wrong: str | None
) -> None:
    assert failure([{"together": 4, "off": 0.0}, answer], 4) == wrong


def test_without_hivemind_nothing_is_said_of_it_and_a_missing_volunteer_is_seen() -> None:
    part = part_of({(4, "float16"): Averagings([0.5], 1, "step 4: 3 of 4 volunteers")}, {}, 2, 1_000_000)
    assert [claim.held for claim in part.claims] == [False, None]
    assert part.tables[0].rows == [(4, "float16", "ravnest", 0.5, 0.5, 1, "step 4: 3 of 4 volunteers")]


def test_the_faster_program_is_found_from_the_lowest_ratio() -> None:
    ours = {(4, "float16"): Averagings([0.5], 0), (8, "float16"): Averagings([1.0], 0)}
    theirs = {(4, "float16"): Averagings([1.0], 0), (8, "float16"): Averagings([0.9], 0)}
    claim = part_of(ours, theirs, 1, 1_000_000).claims[1]
    assert claim.measured == "0.90"
    assert claim.held is False
