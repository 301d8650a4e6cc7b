"""What a backbone does with volunteers is tested over real lines, in tests/integration/test_collaboration.py."""

from pathlib import Path

import pytest

from ravnest.collaboration.backbone import Backbone, form_in_words
from ravnest.collaboration.trainer import Trainer
from ravnest.errors import InvalidInput
from ravnest.job.config import load_job
from tests.unit.ravnest.collaboration.jobs import job_in


def test_models_with_other_parameters_or_another_wire_are_told_apart(tmp_path: Path) -> None:
    words = set()
    for wire in ("float32", "int8"):
        path = job_in(tmp_path / wire, wire=wire)
        words.add(form_in_words(Trainer(load_job(path), path).forms))
    assert words == {"gradients:146:exact statistics:0:exact", "gradients:146:int8 statistics:0:exact"}


@pytest.mark.parametrize("listen", ["7800", "host:", "host:99999", ":0"])
def test_a_place_to_listen_that_is_none_is_refused(tmp_path: Path, listen: str) -> None:
    path = job_in(tmp_path / "job")
    with pytest.raises(InvalidInput):
        Backbone(load_job(path), path, tmp_path / "out", listen=listen)
