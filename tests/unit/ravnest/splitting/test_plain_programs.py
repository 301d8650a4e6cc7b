"""Programs come back from JSON as they were."""

import json

import pytest
import torch

from ravnest.errors import InvalidInput
from ravnest.splitting.plain_programs import as_plain, program_from
from ravnest.splitting.program import StageProgram
from tests.unit.ravnest.splitting.models import CASES, captured_case


def same(left: StageProgram, right: StageProgram) -> bool:
    for (name, tensor), (other_name, other) in zip(left.constants, right.constants, strict=True):
        if name != other_name or tensor.dtype != other.dtype or not torch.equal(tensor, other):
            return False
    parts = [part for part in StageProgram.__dataclass_fields__ if part != "constants"]
    return all(getattr(left, part) == getattr(right, part) for part in parts)


@pytest.mark.parametrize("name", CASES)
def test_every_program_comes_back(name: str) -> None:
    model = captured_case(name)
    for unit in range(len(model.units)):
        program = model.span(unit, unit + 1)
        assert same(program, program_from(json.loads(json.dumps(as_plain(program)))))


def test_a_constant_keeps_its_bits() -> None:
    program = captured_case("gpt").span(0, 1)
    tensors = [torch.tensor([1 + 2j]), torch.empty(0, 3), torch.tensor(True), torch.tensor([0.1], dtype=torch.bfloat16)]
    changed = StageProgram(**{**vars(program), "constants": tuple((f"c{n}", t) for n, t in enumerate(tensors))})
    assert same(changed, program_from(json.loads(json.dumps(as_plain(changed)))))


@pytest.mark.parametrize(
    "plain", [None, [], {"Popen": []}, {"torch": "load"}, {"Value": ["x"]}, {"Value": []}, {"a": 1, "b": 2}]
)
def test_anything_else_is_refused(plain: object) -> None:
    with pytest.raises(InvalidInput, match="program"):
        program_from(plain)
