import json
from itertools import pairwise
from pathlib import Path

from experiments.page.generated_run import GeneratedRun
from experiments.scale.fleets import home_plan
from ravnest.page.followed_run import FollowedRun


def test_a_page_shows_the_generated_run_as_it_grows(tmp_path: Path) -> None:
    run = GeneratedRun(tmp_path / "run", home_plan(8, 4, 0))
    followed = FollowedRun(tmp_path / "run", lambda event: None)
    for seconds in (61, 9):
        run.seconds(seconds)
        followed.look()
    run.close()
    document = json.loads(json.dumps(followed.document()))
    assert document["run"]["at_s"] == 70.0
    assert document["run"]["damaged_lines"] == 0
    assert document["rounds"]["committed"] == 1
    assert [len(cluster["stages"]) for cluster in document["clusters"]] == [4, 4]
    assert all(stage["busy"] > 0 for cluster in document["clusters"] for stage in cluster["stages"])


def test_the_days_of_a_run_are_shown_from_its_history(tmp_path: Path) -> None:
    run = GeneratedRun(tmp_path / "run", home_plan(8, 4, 0))
    run.days(10)
    run.seconds(70)
    followed = FollowedRun(tmp_path / "run", lambda event: None)
    followed.look()
    while followed.behind:
        followed.look()
    run.close()
    document = json.loads(json.dumps(followed.document()))
    assert run.metrics.stat().st_size > 1e9
    assert (tmp_path / "run/history.jsonl").stat().st_size < 1e7
    assert document["run"]["at_s"] == 10 * 86_400 + 130
    assert document["rounds"]["committed"] == 10 * 1440 + 2
    assert document["rounds"]["bytes"] == 8 * 12_000_000
    assert document["run"]["damaged_lines"] == 0
    points = json.loads(json.dumps(followed.curves()))["loss"]["c0"]
    assert all(a[1] <= b[1] for a, b in pairwise(points))
    assert 150 <= len(points) <= 400
