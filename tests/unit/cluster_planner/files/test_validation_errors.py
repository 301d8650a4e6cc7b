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
