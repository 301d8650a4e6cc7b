import math

from ravnest.collaboration.deviations import LEAST_PEOPLE, MOST_DEVIATION, MOST_PEOPLE, Deviations


def test_nothing_is_bounded_while_nobody_could_say_who_lies() -> None:
    deviations = Deviations()
    for person in "ab":
        deviations.saw(person, 1.0, 8)
    deviations.saw("a", 100.0, 8)  # one person is one, however often it comes
    assert len(deviations) == LEAST_PEOPLE - 1
    assert deviations.allowed(8) == math.inf


def test_no_minority_moves_what_is_allowed_beyond_what_honest_ones_have() -> None:
    deviations = Deviations()
    for person, deviation in [("a", 1.0), ("b", 1.2), ("c", 0.8), ("liar", math.inf), ("other liar", 1e30)]:
        deviations.saw(person, deviation, 16)
    assert MOST_DEVIATION * 0.8 <= deviations.allowed(16) <= MOST_DEVIATION * 1.2
    for person in ("liar", "other liar"):
        deviations.saw(person, 0.0, 16)
    assert MOST_DEVIATION * 0.8 <= deviations.allowed(16) <= MOST_DEVIATION * 1.2


def test_fewer_samples_may_deviate_as_much_more_as_they_are_noisier() -> None:
    deviations = Deviations()
    for person in "abc":
        deviations.saw(person, 1.0, 400)  # noise alone: 20 for each sample
    assert deviations.allowed(4) == MOST_DEVIATION * 10.0
    assert deviations.allowed(40_000) == MOST_DEVIATION * 1.0  # what they share does not fall with samples


def test_only_the_last_people_are_remembered() -> None:
    deviations = Deviations()
    for number in range(2 * MOST_PEOPLE):
        deviations.saw(str(number), 1.0, 1)
    assert len(deviations) == MOST_PEOPLE
