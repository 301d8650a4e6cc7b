from experiments.machines.site import MACHINES, Machine, Site


def test_flows_are_bounded_by_the_sender_and_the_receiver() -> None:
    site = Site(MACHINES)
    assert site.flows()["fra-desktop", "iad-mini"] == 50.0
    assert site.flows()["iad-mini", "fra-desktop"] == 20.0
    assert len(site.pairs()) == 6
    assert site.one_way_s("fra-laptop", "iad-mini") == 0.046


def test_only_what_others_can_fill_is_held_to_the_lab() -> None:
    site = Site((Machine("a", "fra", 100.0, 500.0), Machine("b", "fra", 10.0, 60.0), Machine("c", "fra", 10.0, 60.0)))
    assert site.fillable() == {
        ("up", "a"): 100.0,
        ("up", "b"): 10.0,
        ("down", "b"): 60.0,
        ("up", "c"): 10.0,
        ("down", "c"): 60.0,
    }
