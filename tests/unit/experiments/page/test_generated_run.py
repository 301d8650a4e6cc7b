import json
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
