import json
import math
from pathlib import Path

from ravnest.formatting import json_value


def test_values_become_what_json_takes() -> None:
    value = {1: (Path("a") / "b", [math.nan, math.inf, 0.5]), "text": None, "yes": True}
    assert json_value(value) == {"1": ["a/b", [None, None, 0.5]], "text": None, "yes": True}
    assert json.loads(json.dumps(json_value(value), allow_nan=False)) == json_value(value)
