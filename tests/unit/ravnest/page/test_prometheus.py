import json
import re
from pathlib import Path

from ravnest.collaboration.people import People, Person
from ravnest.page.collaboration_view import CURVE, FollowedCollaboration
from ravnest.page.prometheus import members_text, metrics_text
from tests.unit.ravnest.page.test_run_view import Told, told

__all__ = ["told"]


def test_each_figure_has_its_help_its_type_and_its_labels(told: Told) -> None:
    told.update(1.0, "c0", 4.0)
    text = metrics_text(told.document())
    assert 'ravnest_up{run="r"} 1\n' in text
    assert 'ravnest_predicted_samples_per_second{run="r"} 160\n' in text
    assert 'ravnest_cluster_loss{run="r",cluster="c0"} 4\n' in text
    assert 'ravnest_stage_staleness_updates{run="r",cluster="c0",stage="c0.s1",node="laptop"} 0.5\n' in text
    assert declared(text)


def test_what_is_not_known_has_no_line(told: Told) -> None:
    text = metrics_text(told.document())
    assert "held_out" not in text
    assert "None" not in text


def test_names_are_escaped(told: Told) -> None:
    document = told.document()
    document["run"]["name"] = 'a "b"\\c\nd'
    assert 'ravnest_up{run="a \\"b\\"\\\\c\\nd"} 1' in metrics_text(document)


def declared(text: str) -> bool:
    """Whether every figure has its type, and every type a figure."""
    names = set(re.findall(r"^(ravnest_\w+)", text, flags=re.MULTILINE))
    return bool(names) and names == set(re.findall(r"^# TYPE (\w+) gauge$", text, flags=re.MULTILINE))


def test_people_of_a_collaboration_have_figures(tmp_path: Path) -> None:
    folder = tmp_path / "c"
    folder.mkdir()
    assert 'ravnest_collaboration_steps{collaboration="c"} 0\n' in members_text(
        FollowedCollaboration(folder).document()
    )
    people = People({"a" * 64: Person("a" * 64, 'le"na', samples=9, steps=2, visits=1, refused=3, scaled=4)})
    (folder / "people.json").write_text(people.text())
    line = {"step": 2, "time_s": 100.0, "seconds": 0.5, "samples_in_all": 18, "peers": 1, "loss": None}
    (folder / CURVE).write_text(
        json.dumps(line) + "\n" + json.dumps({"held_out": {"loss": 2.5, "nothing": None}}) + "\n"
    )
    text = members_text(FollowedCollaboration(folder, now=lambda: 107.0).document())
    assert declared(text)
    lena = '{collaboration="c",person="le\\"na",key="aaaaaaaaaaaaaaaa"}'
    for name, value in (("samples", 9), ("steps", 2), ("visits", 1), ("refused", 3), ("scaled", 4)):
        assert f"ravnest_person_{name}{lena} {value}\n" in text
    assert 'ravnest_collaboration_samples{collaboration="c"} 18\n' in text
    assert 'ravnest_collaboration_step_age_seconds{collaboration="c"} 7\n' in text
    assert 'ravnest_collaboration_held_out{collaboration="c",measure="loss"} 2.5\n' in text
    assert not re.search("nothing|_loss|None", text)


def test_hosts_of_experts_have_figures() -> None:
    host = {"host": "desk", "address": "192.0.2.1:7700", "experts": ["0.1", "0.2"], "most_experts": 8}
    host |= {"samples_per_s": 120.5, "answer_ms": 30.0, "updates": 7}
    text = members_text(
        {"name": "moe", "experts": 16, "hosted": 2, "hosts": [host], "callers": ["a"], "complete": True}
    )
    assert declared(text)
    assert 'ravnest_experts_hosted{grid="moe"} 2\n' in text
    assert 'ravnest_experts_callers{grid="moe"} 1\n' in text
    desk = '{grid="moe",host="desk",address="192.0.2.1:7700"}'
    for name, value in (("experts", "2"), ("most_experts", "8"), ("samples_per_second", "120.5"), ("updates", "7")):
        assert f"ravnest_host_{name}{desk} {value}\n" in text
    assert f"ravnest_host_answer_seconds{desk} 0.03\n" in text
