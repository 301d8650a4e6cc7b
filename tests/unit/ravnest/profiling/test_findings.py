from ravnest.profiling.findings import (
    THIS_MACHINE,
    RequiredNode,
    clock_findings,
    crowding_findings,
    data_findings,
    device_findings,
    job_findings,
    latency_findings,
    memory_findings,
    missing_findings,
    reach_findings,
    silent_findings,
    version_findings,
)

OURS = {"python": "3.11.7", "torch": "2.13.0", "ravnest": "0.1.0 (abc)"}


def test_other_versions_are_named_and_patch_releases_of_python_pass() -> None:
    versions = {
        THIS_MACHINE: OURS,
        "same": {**OURS, "python": "3.11.9"},
        "old": {**OURS, "torch": "2.9.0", "python": "3.12.1"},
        "edited": {**OURS, "ravnest": "0.1.0 (def)"},
        "bare": {"python": "3.11.7", "ravnest": "0.1.0 (abc)"},
    }
    found = version_findings(versions, THIS_MACHINE)
    assert {(each.about, each.level) for each in found} == {(name, "fails") for name in ("old", "edited", "bare")}
    assert "has torch 2.9.0, and this machine has 2.13.0" in [each.message for each in found]
    assert "has torch not installed, and this machine has 2.13.0" in [each.message for each in found]


def test_planned_nodes_that_ray_lacks_are_told_apart_from_those_it_lost() -> None:
    found = missing_findings([RequiredNode("gone", "10.0.0.2"), RequiredNode("never", "10.0.0.3")], ["10.0.0.2"])
    assert [(each.about, each.message.split(":")[0]) for each in found] == [
        ("gone", "was part of Ray and is no longer"),
        ("never", "is no part of Ray"),
    ]
    assert "no live node is at 10.0.0.3 or has the resource ravnest-never" in found[1].message
    assert "ravnest-never" in found[1].advice


def test_a_silent_node_is_named() -> None:
    (found,) = silent_findings({"attic": "did not answer within 90 s"})
    assert (found.level, found.about) == ("fails", "attic")
    assert "did not answer within 90 s" in found.message


def test_too_little_memory_fails() -> None:
    available = {"a": 2 * 10**9, "b": 2 * 10**9}
    shared = {"a": ("one", 2 * 10**9), "b": ("two", 2 * 10**9)}
    (found,) = memory_findings({"a": 3 * 10**9, "b": 10**9, "silent": 10**9}, available, shared)
    assert found.about == "a"
    assert "2 GB" in found.message
    assert "3 GB" in found.message
    (own,) = memory_findings({"a": 3 * 10**9}, available, shared, "the machine's own memory")
    assert own.message == "has 2 GB of the machine's own memory free, and the plan needs 3 GB there"


def test_nodes_of_one_machine_need_their_memory_together() -> None:
    needed, available = {"a": 2 * 10**9, "b": 10**9, "c": 2 * 10**9}, dict.fromkeys("abc", int(2.5e9))
    box = ("box", int(2.5e9))
    (found,) = memory_findings(needed, available, {"a": box, "b": box, "c": ("other", int(2.5e9))})
    assert found.about == "a, b"
    assert "share 2.5 GB" in found.message
    assert "3 GB" in found.message
    containers = dict.fromkeys("ab", ("box", 10**10))  # each limited to its own part of a large machine
    assert not memory_findings(needed, available, containers)


def test_a_device_that_is_not_there_fails() -> None:
    there = {"a": ["cuda:0"], "b": [], "c": []}
    found = device_findings({"a": "cuda", "b": "cuda:0", "c": "cpu"}, there)
    assert [each.about for each in found] == ["b"]
    assert device_findings({"a": "cuda:1"}, there)[0].message.endswith("cuda:0")


def test_a_pair_that_is_cut_both_ways_is_told_once_and_one_way_by_its_direction() -> None:
    refused = {("a", "b"): "timed out", ("b", "a"): "timed out", ("c", "a"): "Connection refused"}
    worked = {("a", "c"), ("b", "c"), ("c", "b"), ("b", "d"), ("d", "a")}
    found = reach_findings(refused, refused.keys() | worked)
    assert [each.about for each in found] == ["a – b", "c → a"]
    assert "let a accept TCP from c" in found[1].advice
    assert all("both reach others" in each.message for each in found)
    (alone,) = reach_findings({("a", "b"): "timed out"}, {("a", "b")})
    assert "which of the two is at fault is not known" in alone.message


def test_a_node_that_is_cut_off_is_told_once_in_place_of_its_pairs() -> None:
    ways = [(a, b) for a in "abcdx" for b in "abcdx" if a != b]
    refused = {way: "timed out" for way in ways if "x" in way}
    (found,) = reach_findings(refused, ways)
    assert (found.level, found.about) == ("fails", "x")
    assert found.message == "is cut off from all 4 that it was tried with (a, b, c, d): timed out"
    (found,) = reach_findings({way: "Connection refused" for way in ways if way[1] == "x"}, ways)
    assert found.message.startswith("takes no connection of the 4 that tried")
    (found,) = reach_findings({way: "unreachable" for way in ways if way[0] == "x"}, ways)
    assert found.message.startswith("gets no connection to the 4 that it tried")


def test_a_latency_far_above_the_planned_one_warns() -> None:
    found = latency_findings(
        {("a", "b"): 0.09, ("b", "c"): 0.012, ("a", "d"): 9.0}, {("a", "b"): 0.05, ("b", "c"): 0.01}
    )
    assert [(each.about, each.level) for each in found] == [("a – b", "warns")]


def test_clocks_count_only_beyond_what_measuring_leaves_open() -> None:
    found = clock_findings({"a": (7.0, 0.1), "b": (-7.0, 3.0), "c": (-90.0, 0.1)})
    assert [(each.about, each.message) for each in found] == [
        ("a", "has a clock that is 7.0 s ahead"),
        ("c", "has a clock that is 1 min 30 s behind"),
    ]


def test_code_and_data_problems_are_named_by_node() -> None:
    found = job_findings({"a": ["no module 'x'"], "b": []})
    assert [(each.about, each.message) for each in found] == [("a", "no module 'x'")]


def test_other_data_fails_where_it_can_be_compared() -> None:
    data = {
        THIS_MACHINE: (100, 10, "d1"),
        "fewer": (99, 10, "d1"),
        "other": (100, 10, "d2"),
        "augmented": (100, 10, ""),
        "same": (100, 10, "d1"),
    }
    assert [each.about for each in data_findings(data, THIS_MACHINE)] == ["fewer", "other"]


def test_nodes_of_one_machine_are_named_together() -> None:
    (found,) = crowding_findings({"b": "x", "a": "x", "c": "y"})
    assert (found.about, found.level) == ("a, b", "warns")
    assert crowding_findings({"a": "x", "b": "y"}) == []
