import json
from pathlib import Path

from ravnest.collaboration.people import People, Person
from ravnest.page.collaboration_view import FollowedCollaboration, is_collaboration


def step(number: int, loss: float | None) -> str:
    told = {"step": number, "time_s": 100.0 + number, "seconds": 0.5, "samples": 64, "samples_in_all": 64 * number}
    return json.dumps({**told, "peers": 3, "loss": loss}) + "\n"


def test_before_the_first_step_nobody_has_come(tmp_path: Path) -> None:
    found = FollowedCollaboration(tmp_path).document()
    assert (found["steps"], found["samples"], found["people"], found["age_s"]) == (0, 0, [], None)


def test_people_steps_and_losses_are_told_as_they_come(tmp_path: Path) -> None:
    curve = tmp_path / "curve.jsonl"
    people = People({"a" * 64: Person("a" * 64, "lena", 9), "b": Person("b", "otto", 70)})
    (tmp_path / "people.json").write_text(people.text())
    curve.write_text(step(1, 3.0) + json.dumps({"step": 1, "held_out": {"loss": 2.5}}) + "\n")
    followed = FollowedCollaboration(tmp_path, now=lambda: 111.0)
    found = followed.document()
    assert (found["steps"], found["volunteers"], found["age_s"], found["held_out"]) == (1, 3, 10.0, {"loss": 2.5})
    assert [(one["name"], one["samples"], one["key"]) for one in found["people"]] == [  # type: ignore[attr-defined]
        ("otto", 70, "b"),
        ("lena", 9, "a" * 16),
    ]
    with curve.open("a") as file:
        file.write(step(2, None) + "no json\n[1]\n" + step(3, 2.0) + '{"step": 4')
    found = followed.document()
    assert (found["steps"], found["samples"], found["curve"]) == (3, 192, [[64.0, 3.0], [192.0, 2.0]])
    with curve.open("a") as file:
        file.write("\n" + step(2, 2.5))  # the backbone has died, and makes steps again
    assert followed.document()["curve"] == [[64.0, 3.0], [128.0, 2.5]]
    curve.write_text(step(1, 4.0))
    assert followed.document()["curve"] == [[64.0, 4.0]]


def test_people_that_cannot_be_read_are_told(tmp_path: Path) -> None:
    (tmp_path / "people.json").write_text("{}{")
    assert "people.json cannot be read" in str(FollowedCollaboration(tmp_path).document()["problem"])


def test_a_run_is_no_collaboration(tmp_path: Path) -> None:
    assert not is_collaboration(tmp_path)
    (tmp_path / "keys.json").touch()
    assert is_collaboration(tmp_path)
    (tmp_path / "plan.yaml").touch()
    assert not is_collaboration(tmp_path)
