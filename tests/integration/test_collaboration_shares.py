"""Two backbone machines and three volunteers, each a process: the second one adds up a share, and is killed."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.collaborators import Collaborators, until

JOB = """
mode: collaborative
target_batch: 96
model: {factory: rows:model, args: {width: 20000}}
data: {factory: rows:Data}
micro_batch: 8
optimizer: {name: adamw, lr: 1.0e-4}
averaging: {wire: float16}
stop: {samples: 2880}
evaluate_every: 2880
"""


@pytest.fixture
def all_of_them(tmp_path: Path) -> Iterator[Collaborators]:
    found = Collaborators(tmp_path, JOB)
    yield found
    found.end()


def test_a_machine_that_stands_by_adds_up_a_share_and_costs_no_step_when_it_is_killed(
    all_of_them: Collaborators,
) -> None:
    said = all_of_them.said
    all_of_them.backbones("--link-mbit", "100")
    names = ["ada", "eva", "lea"]
    for name in names:
        all_of_them.join(name)
    until(lambda: f"{all_of_them.two} may add up shares" in said("first"), "an epoch begins")
    until(lambda: "step 4:" in said("first"), "steps are made")
    all_of_them.started["second"].kill()
    until(lambda: f"{all_of_them.two} adds up no share" in said("first"), "the helper is missed")
    assert len(all_of_them.hashes("first", *names)) == 1
    assert all(said(name).count("trying again") == 0 for name in names)


def test_what_a_volunteer_gives_that_reaches_the_serving_machine_alone_is_handed_on(
    all_of_them: Collaborators,
) -> None:
    said = all_of_them.said
    all_of_them.backbones("--link-mbit", "100")
    names = ["ada", "eva", "lea"]
    for name in names:
        all_of_them.join(name, closed=all_of_them.two if name == "lea" else "")
    until(lambda: "lea does not reach all that add up shares" in said("first"), "an epoch begins")
    assert len(all_of_them.hashes("first", "second", *names)) == 1
    given_up = [line for line in said("first").splitlines() if "adds up no share" in line]
    assert all("steps are not shorter with shares" in line for line in given_up), "that lea is far is no reason"
    assert all(said(name).count("trying again") == 0 for name in names)
