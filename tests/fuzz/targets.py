"""All targets: messages (messages.py) and files (files.py)."""

from collections.abc import Mapping

from tests.fuzz.files import file_targets
from tests.fuzz.messages import message_targets
from tests.fuzz.target import Target


def targets() -> Mapping[str, Target]:
    """By name."""
    return {**message_targets(), **file_targets()}
