import json
import math
from pathlib import Path

from ravnest.json_values import plain


def test_values_become_what_json_takes() -> None:
    value = {1: (Path("a") / "b", [math.nan, math.inf, 0.5]), "text": None, "yes": True}
    assert plain(value) == {"1": ["a/b", [None, None, 0.5]], "text": None, "yes": True}
    assert json.loads(json.dumps(plain(value), allow_nan=False)) == plain(value)
