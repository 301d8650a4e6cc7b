from ravnest.driver.observe.expert_figures import ExpertFigures
from ravnest.stage.expert_reports import ExpertsAsked


def asked(batches: int, hosts: int) -> ExpertsAsked:
    names = [f"host{number}" for number in range(hosts)]
    return ExpertsAsked(
        grid="digits",
        places=16,
        batches=batches,
        waited_s=0.5 * batches,
        requests=8 * batches,
        dropped=1,
        experts=dict.fromkeys(names, 4),
        most_experts=dict.fromkeys(names, 8),
        updates=dict.fromkeys(names, 100),
        samples_per_s=dict.fromkeys(names, 20.0),
        answer_s=dict.fromkeys(names, 0.01),
    )


def test_a_grid_has_what_each_stage_asked_and_the_hosts_that_were_told_last() -> None:
    figures = ExpertFigures()
    assert figures.since_last() == []
    figures.told("c0.s1", asked(4, hosts=2))
    figures.told("c1.s1", asked(6, hosts=1))
    host = {"experts": 4, "most_experts": 8, "samples_per_s": 20.0, "answer_s": 0.01, "updates": 100}
    assert figures.since_last() == [
        {
            "grid": "digits",
            "places": 16,
            "hosts": [{"host": "host0", **host}],
            "stages": {
                "c0.s1": {"batches": 4, "waited_s": 2.0, "requests": 32, "dropped": 1},
                "c1.s1": {"batches": 6, "waited_s": 3.0, "requests": 48, "dropped": 1},
            },
        }
    ]
    assert figures.since_last() == []
    figures.told("c0.s1", asked(5, hosts=3))
    (row,) = figures.since_last()
    assert [one["host"] for one in row["hosts"]] == ["host0", "host1", "host2"]  # type: ignore[attr-defined]
