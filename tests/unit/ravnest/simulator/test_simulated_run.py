import json

from ravnest.simulator import as_plain, simulate
from tests.unit.ravnest.simulator.test_simulate import EVENTFUL, PLAN


def test_a_result_is_one_json_document() -> None:
    result = simulate(PLAN, EVENTFUL, seconds=30.0)
    document = json.loads(json.dumps(as_plain(result), allow_nan=False))
    assert document["samples_per_s"] == result.samples_per_s
    assert len(document["stages"]) == len(result.stages)
    assert document["events_per_minute"] == result.events_per_minute > 0
