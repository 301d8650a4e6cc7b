"""Errors: one base, and messages that name what was wrong and where."""

import inspect

import pytest

from ring_allreduce import errors
from ring_allreduce.errors import (
    ContributionRefused,
    DeadlinePassed,
    InvalidInput,
    PeerLost,
    PeerStalled,
    RavnestError,
)


def test_every_error_has_the_one_base():
    classes = [value for value in vars(errors).values() if inspect.isclass(value)]
    assert all(issubclass(cls, RavnestError) for cls in classes)
    assert len(classes) == 11


def test_only_the_users_mistakes_exit_with_two():
    assert InvalidInput("x").exit_code == 2
    assert PeerLost("a", "it left").exit_code == 1


@pytest.mark.parametrize(
    ("error", "words"),
    [
        (
            InvalidInput("must be above 0", path="job.yaml", key="max_lag"),
            "job.yaml: max_lag: must be above 0",
        ),
        (PeerStalled("b", "bulk", 4), "peer 'b' takes no more bulk messages: 4 already wait for it"),
        (ContributionRefused("c", "r0", 3, "NaN"), "round 3 of ring 'r0': refused what 'c' gave: NaN"),
        (PeerLost("d", "it left"), "member 'd' is lost: it left"),
        (DeadlinePassed("the commit", 2.5), "the commit did not happen within 2.5 s"),
    ],
)
def test_messages_name_who_and_what(error, words):
    assert str(error) == words
