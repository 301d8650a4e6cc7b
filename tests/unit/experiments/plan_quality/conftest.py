"""The paced model's module, whatever other tests have imported under its name."""

import sys
from collections.abc import Iterator

import pytest


@pytest.fixture(scope="module")
def paced() -> Iterator[None]:
    """Let factories find experiments/harness/paced_model.py."""
    before = sys.modules.pop("paced_model", None)
    yield
    sys.modules.pop("paced_model", None)
    if before is not None:
        sys.modules["paced_model"] = before
