import re

from ravnest.page.prometheus import metrics_text
from tests.unit.ravnest.page.test_run_view import Told, told

__all__ = ["told"]


def test_each_figure_has_its_help_its_type_and_its_labels(told: Told) -> None:
    told.update(1.0, "c0", 4.0)
    text = metrics_text(told.document())
    assert 'ravnest_up{run="r"} 1\n' in text
    assert 'ravnest_predicted_samples_per_second{run="r"} 160\n' in text
    assert 'ravnest_cluster_loss{run="r",cluster="c0"} 4\n' in text
    assert 'ravnest_stage_staleness_updates{run="r",cluster="c0",stage="c0.s1",node="laptop"} 0.5\n' in text
    names = set(re.findall(r"^(ravnest_\w+)", text, flags=re.MULTILINE))
    assert names == set(re.findall(r"^# TYPE (\w+) gauge$", text, flags=re.MULTILINE))


def test_what_is_not_known_has_no_line(told: Told) -> None:
    text = metrics_text(told.document())
    assert "held_out" not in text
    assert "None" not in text


def test_names_are_escaped(told: Told) -> None:
    document = told.document()
    document["run"]["name"] = 'a "b"\\c\nd'
    assert 'ravnest_up{run="a \\"b\\"\\\\c\\nd"} 1' in metrics_text(document)
