"""docs/averaging.md: its code runs as it stands there, and its table names what there is."""

import inspect
import re
from dataclasses import fields
from pathlib import Path

import pytest
import torch

import ring_allreduce
from ring_allreduce import Group, Keys, Patience, Rendezvous

pytestmark = pytest.mark.timeout(60)

TEXT = (Path(__file__).parents[2] / "docs/averaging.md").read_text(encoding="utf-8")
CODE = re.findall(r"```python\n(.*?)```", TEXT, re.DOTALL)


def block(part: str) -> str:
    (found,) = [code for code in CODE if part in code]
    return str(found)


def run(code: str, **names: object) -> dict[str, object]:
    namespace = dict(names)
    exec(compile(code, "docs/averaging.md", "exec"), namespace)
    return namespace


def test_the_ten_lines_average() -> None:
    model = torch.nn.Linear(3, 2)
    before = [parameter.detach().clone() for parameter in model.parameters()]
    with Rendezvous(size=1) as rendezvous:
        code = (
            block("train_for_a_while").replace("192.0.2.1:29500", rendezvous.address).replace("192.0.2.7", "127.0.0.1")
        )
        assert len(code.strip().splitlines()) <= 10
        ran = run(code.replace("size=3", "size=1"), model=model, train_for_a_while=lambda model: 8)
        assert rendezvous.wait(20)
    assert isinstance(ran["group"], Group)
    assert ran["group"].rounds == 10
    assert all(torch.equal(old, new) for old, new in zip(before, model.parameters(), strict=True))


def test_the_rendezvous_serves() -> None:
    code = block("rendezvous.wait()").replace('host="192.0.2.1", port=29500', "port=0").replace(".wait()", ".wait(0.1)")
    assert isinstance(run(code)["rendezvous"], Rendezvous)


def test_the_keys_are_made_and_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    keys = run(block("KeyPair.make()"))["keys"]
    assert isinstance(keys, Keys)
    assert set(keys.allowed) == {"desk", "attic", "shed", "rendezvous"}


def test_the_reducers_average() -> None:
    averages = run(block("RingReducer"))["averages"]
    assert isinstance(averages, dict)
    assert set(averages) == {"a", "b", "c"}
    assert all(torch.equal(average, torch.ones(1000)) for average in averages.values())


@pytest.mark.parametrize(("outer", "weight"), [("None", 1.5), ("Nesterov()", 1.83)])
def test_progress_keeps_what_was_made_meanwhile(outer: str, weight: float) -> None:
    weights = run(block("Progress(weights").replace("outer=None", f"outer={outer}"))["weights"]
    assert isinstance(weights, torch.Tensor)
    assert weights == pytest.approx(torch.full((1000,), weight))


@pytest.mark.parametrize("call", [Group.join, Group.average, Rendezvous, Rendezvous.wait, Patience])
def test_the_table_has_every_argument_and_its_default(call: object) -> None:
    assert callable(call)
    name = call.__qualname__.replace("Group.average", "group.average").replace("Rendezvous.wait", "rendezvous.wait")
    (shown,) = re.findall(rf"^\| `{re.escape(name)}\((.*?)\)`", TEXT, re.MULTILINE)
    expected = []
    for parameter in inspect.signature(call).parameters.values():
        if parameter.name == "self":
            continue
        if parameter.kind is parameter.KEYWORD_ONLY and "*" not in expected:
            expected.append("*")
        default = "" if parameter.default is parameter.empty else f"={parameter.default!r}".replace("'", '"')
        expected.append(parameter.name + re.sub(r"^=Patience\(.*", "=Patience()", default))
    assert shown.split(", ") == expected


def test_every_name_in_code_is_one_of_the_library() -> None:
    imported = {name for names in re.findall(r"from ring_allreduce import (.*)", TEXT) for name in names.split(", ")}
    assert imported <= set(ring_allreduce.__all__)
    assert {"Group", "Rendezvous", "RingReducer", "Progress"} <= imported


def test_its_statistics_are_those_of_the_table() -> None:
    with Rendezvous(size=1) as rendezvous, Group.join(rendezvous.address, name="a", size=1) as group:
        group.average([torch.ones(10)])
        (of_ring,) = group.statistics().values()
        assert list(group.statistics()) == ["group"]
    assert of_ring.rounds == 1
    (row,) = re.findall(r"^\| `group.statistics\(\)` \| (.*)$", TEXT, re.MULTILINE)
    public = [field.name for field in fields(of_ring) if not field.name.startswith("_")]
    for name in (*public, "share_of(bytes_per_s)"):
        assert f"`{name}`" in row
