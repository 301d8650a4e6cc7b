import pytest

from cluster_planner.files import schema
from cluster_planner.files.conversion import bytes_of_gb, fleet_from, fleet_to
from cluster_planner.inputs.fleet import Fleet


def test_a_fleet_comes_back_from_its_own_sections(home: Fleet) -> None:
    assert fleet_from(schema.FleetFile.model_validate(fleet_to(home))) == home


@pytest.mark.parametrize("memory_gb", [0.1, 1.7, 16.0, 23.999])
def test_a_stated_number_is_written_as_it_was_stated(home: Fleet, memory_gb: float) -> None:
    document = fleet_to(home)
    nodes = document["nodes"]
    assert isinstance(nodes, list)
    nodes[0]["memory_gb"] = memory_gb
    fleet = fleet_from(schema.FleetFile.model_validate(document))
    assert fleet.nodes[0].memory_bytes == bytes_of_gb(memory_gb)
    again = fleet_to(fleet)["nodes"]
    assert isinstance(again, list)
    assert again[0]["memory_gb"] == memory_gb
