"""Files that are wrong anywhere in any way are refused by name, with exit code 2; nothing is a mistake in ravnest."""

import copy
import math
import os
import random
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import yaml

from ravnest.cli.main import describe
from ravnest.files import load_fleet, load_job, read_plan, save_plan
from ravnest.job.config import job_from_mapping
from ravnest.planning.workload import check_job_of_plan, check_workload
from tests.support.local import setups_of, tiny_job

JOBS = Path(__file__).parents[2] / "support" / "jobs"
VALUES = (True, [], {}, "x" * 10_000, math.inf, None, -1, {True: 1}, {None: 1}, [None], 10**400, "\x00", b"\xff")
SEED = int(os.environ.get("RAVNEST_MUTATION_SEED", "0"))
"""Only some of all changes of a file are tried. Another seed tries others."""

Place = tuple[str | int, ...]


def read_whole_plan(path: Path) -> None:
    plan, again = read_plan(path, lambda said: None)
    job = job_from_mapping(plan.job, path=str(path), under="job.")
    check_workload(plan, job, path)
    check_job_of_plan(again, path)


def read_fleet(path: Path) -> None:
    load_fleet(path, warn=lambda said: None)


def places(document: object, at: Place = ()) -> Iterator[Place]:
    """Every place in a document; of a list the first two entries."""
    yield at
    if isinstance(document, dict):
        for key, value in document.items():
            yield from places(value, (*at, key))
    elif isinstance(document, list):
        for number, value in enumerate(document[:2]):
            yield from places(value, (*at, number))


def changed(document: object, at: Place, value: object) -> object:
    if not at:
        return value
    made: object = copy.deepcopy(document)
    inner: object = made
    for part in at[:-1]:
        inner = inner[part]  # type: ignore[index]
    inner[at[-1]] = value  # type: ignore[index]
    return made


@pytest.fixture
def written(tmp_path: Path) -> dict[str, Path]:
    """A valid file of each kind."""
    job = yaml.safe_load((JOBS / "job.yaml").read_text())
    job |= {
        "loss": "cross_entropy",
        "averaging": {"weighting": "samples", "outer": {"nesterov": {"lr": 0.7, "momentum": 0.9}}},
        "wire": {"activations": "int8"},
        "initial_weights": {"path": "here", "new": ["head.*"]},
        "sample": {"factory": "tiny:words", "args": {"length": 3}},
    }
    job["optimizer"]["betas"] = [0.9, 0.99]
    (tmp_path / "job.yaml").write_text(yaml.safe_dump(job))
    (tmp_path / "nodes.yaml").write_bytes((JOBS / "nodes.yaml").read_bytes())
    save_plan(setups_of(tiny_job(), parts=(2, 1))[1], tmp_path / "plan.yaml")
    return {path.name: path for path in tmp_path.iterdir()}


@pytest.mark.parametrize(
    ("name", "read", "tries"),
    [("job.yaml", load_job, 150), ("nodes.yaml", read_fleet, 120), ("plan.yaml", read_whole_plan, 40)],
)
def test_a_wrong_value_anywhere_is_the_users(
    written: dict[str, Path], name: str, read: Callable[[Path], object], tries: int
) -> None:
    path = written[name]
    read(path)
    document = yaml.safe_load(path.read_text())
    cases = [(at, value) for at in places(document) for value in VALUES]
    refused = 0
    for at, value in random.Random(SEED).sample(cases, tries):
        path.write_text(yaml.safe_dump(changed(document, at, value)))
        try:
            read(path)
        except Exception as error:  # noqa: BLE001 - any other error than InvalidInput is what is looked for
            lines, code = describe(error)
            assert code == 2, (at, str(value)[:40], lines)
            assert all(line.startswith(str(path)) for line in lines), (at, str(value)[:40], lines)
            refused += 1
    assert refused > tries / 3  # or nothing was tried


@pytest.mark.parametrize("read", [load_job, read_fleet, read_whole_plan])
@pytest.mark.parametrize(
    ("content", "said"),
    [
        (b"\xff\xfe\x00", "is not UTF-8"),
        (b"\x00", "is not valid YAML"),
        (b"a: [1", "is not valid YAML"),
        (b"? {a: 1}\n: 2\n", "is not valid YAML"),
        (b"a: !!python/object/apply:os.getcwd []", "is not valid YAML"),
        (b"a: &a [*a]", ""),
        (b"a: " + b"9" * 5000, "too many digits"),
        (b"[" * 5000, "nested too deeply"),
        (b"", "is empty"),
        (None, "is a folder"),
    ],
)
def test_what_is_no_such_file_is_named(
    tmp_path: Path, read: Callable[[Path], object], content: bytes | None, said: str
) -> None:
    path = tmp_path / "file.yaml"
    path.mkdir() if content is None else path.write_bytes(content)
    with pytest.raises(Exception, match=r"file\.yaml") as caught:
        read(path)
    lines, code = describe(caught.value)
    assert code == 2
    assert said in lines[0]
