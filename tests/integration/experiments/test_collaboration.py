"""A backbone and volunteers that average as fast as they can: what `experiments.collaboration` sets beside hivemind."""

from pathlib import Path

import pytest

from experiments.collaboration.beside_hivemind import collaboration

pytestmark = pytest.mark.timeout(300)


def test_volunteers_that_begin_together_are_in_every_step_and_all_come_to_the_end(tmp_path: Path) -> None:
    found = collaboration(tmp_path, 2, "float16", 3, 32)
    assert (len(found.seconds), found.failed) == (3, 0), found.why
    assert all(0 < seconds < 60 for seconds in found.seconds)
