from dataclasses import replace

from cluster_planner import Fleet, Link, Node
from experiments.machines.judging import cluster, links, unmeasured
from experiments.machines.measure import Story
from experiments.machines.site import MACHINES, Site

SITE = Site(MACHINES)
MBPS = 125_000.0


def story(slow: float = 1.0) -> Story:
    nodes = tuple(
        Node(
            name=each.name,
            flops_per_s=1e9,
            memory_bytes=10**9,
            up_bytes_per_s=each.up_mbps * MBPS * 0.99,
            down_bytes_per_s=each.down_mbps * MBPS * 0.99,
        )
        for each in MACHINES
    )
    fleet = Fleet(nodes, tuple(Link(a, b, slow * seconds, 1e9) for a, b, seconds in SITE.pairs()))
    cut = {"level": "fails", "about": "iad-mini", "message": "did not answer"}
    return Story(
        site=SITE,
        fleet=fleet,
        profile={"notes": []},
        sound={"findings": [{"level": "warns", "about": "a, b", "message": "share one machine"}]},
        sound_code=0,
        run={"samples": 3000, "held_out_loss": 0.5},
        cut="iad-mini",
        sick={"findings": [cut]},
        sick_code=1,
    )


def test_figures_within_a_tenth_hold_and_others_do_not() -> None:
    assert [claim.held for claim in links(story()).claims] == [True, True, True]
    assert [claim.held for claim in links(story(slow=1.2)).claims] == [False, True, True]


def test_doctor_has_to_name_the_machine_that_was_cut_and_no_other() -> None:
    assert [claim.held for claim in cluster(story()).claims] == [True, True, True]
    other = {"level": "fails", "about": "fra-laptop", "message": "did not answer"}
    both = replace(story(), sick={"findings": [*story().sick["findings"], other]})
    assert [claim.held for claim in cluster(both).claims] == [True, True, False]
    failed = replace(story(), run={"error": "no module"}, sound_code=1)
    assert [claim.held for claim in cluster(failed).claims] == [False, False, True]


def test_without_a_lab_nothing_is_claimed() -> None:
    (claim,) = unmeasured("links", "links", "no wanlab").claims
    assert claim.held is None
    assert "no wanlab" in claim.measured
