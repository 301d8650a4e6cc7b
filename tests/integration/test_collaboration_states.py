"""Two backbone machines and two volunteers, each a process: who joins late takes the state from the machine that stands
by."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.collaborators import Collaborators, until

JOB = """
mode: collaborative
target_batch: 48
model: {factory: rows:model, args: {width: 200000}}
data: {factory: rows:Data}
micro_batch: 8
optimizer: {name: adamw, lr: 1.0e-4}
averaging: {wire: float16}
stop: {samples: SAMPLES}
evaluate_every: SAMPLES
"""


@pytest.fixture
def all_of_them(tmp_path: Path) -> Iterator[Collaborators]:
    found = Collaborators(tmp_path, JOB.replace("SAMPLES", str(48 * 40)))
    yield found
    found.end()


def test_who_joins_late_takes_the_state_from_the_machine_that_stands_by(all_of_them: Collaborators) -> None:
    said, two = all_of_them.said, all_of_them.two
    all_of_them.backbones()
    all_of_them.join("ada")
    until(lambda: "step 3:" in said("first"), "steps are made")
    all_of_them.join("eva")
    until(lambda: "holds the state" in said("eva"), "the late one has the state")
    joined = [line for line in said("first").splitlines() if "eva joins" in line]
    assert len(joined) == 1
    assert f"takes the state from {two}" in joined[0]
    assert len(all_of_them.hashes("first", "second", "ada", "eva")) == 1
    for name in ("ada", "eva"):
        assert "hands over no state" not in said(name)
        assert "trying again" not in said(name)
