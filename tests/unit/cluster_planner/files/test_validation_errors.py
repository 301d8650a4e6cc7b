from typing import Annotated, Literal

import pydantic
import pytest

from cluster_planner.files import schema
from cluster_planner.files.validation_errors import dotted, problems_of


def problems(data: dict[str, object]) -> dict[str | None, str]:
    with pytest.raises(pydantic.ValidationError) as caught:
        schema.FleetFile.model_validate(data)
    return dict(problems_of(caught.value, schema.FleetFile, data))


def test_a_place_is_written_as_a_person_would_point_to_it() -> None:
    assert dotted(["nodes", 2, "up_mbps"]) == "nodes[2].up_mbps"
    assert dotted([]) is None


def test_each_faulty_key_is_named_with_what_was_expected() -> None:
    node = {"name": "a", "gflops": "many", "memory_gb": 4.0, "up_mbps": 10.0, "down_mbps": 10.0}
    found = problems({"nodes": [node]})
    assert list(found) == ["nodes[0].gflops"]
    assert "number" in found["nodes[0].gflops"]


def test_a_misspelt_key_is_not_called_missing_as_well() -> None:
    node = {"name": "a", "gflops": 1.0, "memory_gb": 4.0, "up_mbps": 10.0, "down_mpbs": 10.0}
    found = problems({"nodes": [node]})
    assert list(found) == ["nodes[0].down_mpbs"]
    assert "down_mbps" in found["nodes[0].down_mpbs"]


def test_what_was_found_is_said_once_beside_all_that_may_stand_there() -> None:
    class Form(pydantic.BaseModel):
        wire: Literal["exact", "int8"] | Annotated[int, pydantic.Field(ge=0)]

    with pytest.raises(pydantic.ValidationError) as caught:
        Form.model_validate({"wire": -1})
    assert problems_of(caught.value, Form, {"wire": -1}) == [
        ("wire", "must be 'exact' or 'int8', or 0 or more, not -1"),
    ]


def test_what_is_neither_true_nor_false_is_told_so() -> None:
    class Form(pydantic.BaseModel):
        each: bool

    with pytest.raises(pydantic.ValidationError) as caught:
        Form.model_validate({"each": "perhaps"})
    assert problems_of(caught.value, Form, {"each": "perhaps"}) == [
        ("each", "must be true or false, not the text 'perhaps'"),
    ]
