from cluster_planner.inputs.links import latency_graph, shortest_from


def test_an_unmeasured_pair_gets_the_shortest_path_and_its_slowest_link() -> None:
    links = [("a", "b", 0.01, 5.0), ("b", "c", 0.02, 3.0), ("a", "c", 0.5, 9.0)]
    graph = latency_graph(dict.fromkeys("abc"), links, [])
    assert shortest_from(graph, "a") == {"b": (0.01, 5.0), "c": (0.03, 3.0)}


def test_regions_join_nodes_without_one_node_per_pair() -> None:
    graph = latency_graph({"a": "x", "b": "y", "c": None}, [("b", "c", 0.01, 4.0)], [("x", "y", 0.1, 7.0)])
    latency_s, rate = shortest_from(graph, "a")["c"]
    assert (round(latency_s, 9), rate) == (0.11, 4.0)


def test_two_nodes_of_one_region_are_not_joined_by_the_region_alone() -> None:
    graph = latency_graph({"a": "x", "b": "x"}, [], [])
    assert shortest_from(graph, "a") == {}


def test_a_region_joined_to_itself_joins_its_nodes() -> None:
    graph = latency_graph({"a": "x", "b": "x"}, [], [("x", "x", 0.002, 9.0)])
    assert shortest_from(graph, "a") == {"b": (0.002, 9.0)}
