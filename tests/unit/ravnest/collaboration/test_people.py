from pathlib import Path

import pytest

from ravnest.collaboration.people import FILE, People, read_people
from ravnest.errors import InvalidInput


def test_people_are_ranked_by_samples_and_kept_by_key(tmp_path: Path) -> None:
    people = People()
    people.came("k1", "ada").samples += 10
    people.came("k2", "bob").samples += 30
    people.came("k1", "ada again").steps += 1
    (tmp_path / FILE).write_text(people.text())
    first, second = read_people(tmp_path).ranked()
    assert (first.name, first.samples) == ("bob", 30)
    assert (second.name, second.samples, second.visits, second.steps) == ("ada again", 10, 2, 1)


def test_who_gives_nothing_is_forgotten_when_it_has_left(tmp_path: Path) -> None:
    people = People()
    for number in range(1000):
        people.left(people.came(f"{number}", "nobody"))
    twice, gave = [people.came("aa", "lena") for _ in range(2)], people.came("bb", "tom")
    gave.samples = 8
    people.left(gave)
    people.left(twice[0])
    assert [one.name for one in people.ranked()] == ["tom", "lena"], "lena is still there"
    people.left(twice[1])
    assert [one.name for one in people.ranked()] == ["tom"]


def test_who_leaves_before_its_step_is_committed_is_counted_all_the_same() -> None:
    people = People()
    gave, vain = people.came("aa", "lena"), people.came("bb", "tom")
    people.gave("lena#1", gave)
    people.gave("tom#2", vain)
    people.left(gave)
    people.left(vain)
    people.scaled(["aa"])
    people.committed({"lena#1": 8})  # the other's contribution came to nothing
    assert [(one.name, one.samples, one.steps, one.scaled) for one in people.ranked()] == [("lena", 8, 1, 1)]
    people.committed({"lena#1": 8})
    assert people.ranked()[0].samples == 8, "of a step that is over"


def test_nobody_has_come_yet(tmp_path: Path) -> None:
    assert read_people(tmp_path).ranked() == []


@pytest.mark.parametrize(
    "text",
    [
        "{",
        "[1]",
        '[{"key": "k"}]',
        '[{"key": "k", "name": "n", "samples": "many"}]',
        '[{"key": "k", "name": 5}]',
        pytest.param("[" * 100_000, id="deep"),
    ],
)
def test_another_file_is_refused_by_name(tmp_path: Path, text: str) -> None:
    (tmp_path / FILE).write_text(text)
    with pytest.raises(InvalidInput, match=FILE):
        read_people(tmp_path)
