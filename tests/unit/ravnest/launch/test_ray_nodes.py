from ravnest.launch.ray_nodes import named_nodes
from ravnest.launch.ray_session import RayNode


def node(address: str, name: str | None = None, hostname: str = "vm") -> RayNode:
    return RayNode(f"id-{address}", address, name, 1, hostname, True, True)


def test_nodes_are_called_as_the_file_then_as_their_resource_then_as_their_host() -> None:
    nodes = [node("10.0.0.1"), node("10.0.0.2", "laptop"), node("10.0.0.3", hostname="attic")]
    named = named_nodes(nodes, {"10.0.0.1": ["desk"]})
    assert {name: each.address for name, each in named.items()} == {
        "desk": "10.0.0.1",
        "laptop": "10.0.0.2",
        "attic": "10.0.0.3",
    }


def test_hosts_of_one_name_are_told_apart_by_address_and_names_given_twice_by_id() -> None:
    assert set(named_nodes([node("10.0.0.1"), node("10.0.0.2")], {})) == {"vm-10.0.0.1", "vm-10.0.0.2"}
    twice = named_nodes([node("10.0.0.1", "gpu"), node("10.0.0.2", "gpu")], {})
    assert len(twice) == 2


def test_nodes_of_one_machine_are_all_named() -> None:
    named = named_nodes([node("10.0.0.1")], {"10.0.0.1": ["box-gpu0", "box-gpu1"]})
    assert {name: each.address for name, each in named.items()} == {"box-gpu0": "10.0.0.1", "box-gpu1": "10.0.0.1"}


def test_a_planned_node_is_found_by_address_or_resource() -> None:
    assert node("10.0.0.1").is_of("desk", "10.0.0.1")
    assert node("10.0.0.9", "desk").is_of("desk", None)
    assert not node("10.0.0.9").is_of("desk", None)
