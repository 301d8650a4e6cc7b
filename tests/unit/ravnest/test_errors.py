import pytest

import cluster_planner
import ring_allreduce
from ravnest.errors import Interrupted, InvalidInput, ModelNotSplittable, NodeLost, RavnestError, RunFailed, naming


def test_the_three_packages_share_one_tree() -> None:
    assert cluster_planner.InvalidInput is ring_allreduce.InvalidInput is InvalidInput
    for error in (cluster_planner.NoFeasiblePlan, ModelNotSplittable):
        assert issubclass(error, InvalidInput)
    for error in (ring_allreduce.PeerLost, ring_allreduce.TransportError, Interrupted, RunFailed):
        assert issubclass(error, RavnestError)
    assert issubclass(NodeLost, RunFailed)


def test_exit_codes_tell_input_failure_and_interruption_apart() -> None:
    assert [error.exit_code for error in (InvalidInput, RunFailed, NodeLost, Interrupted)] == [2, 1, 1, 130]


def test_naming_adds_the_file_and_keeps_class_key_and_hint() -> None:
    with pytest.raises(ModelNotSplittable) as raised, naming("job.yaml", "model"):
        raise ModelNotSplittable("no", hint="try another")
    assert (str(raised.value), raised.value.hint) == ("job.yaml: model: no", "try another")
    with pytest.raises(InvalidInput, match=r"^job\.yaml: loss: no$"), naming("job.yaml", "model"):
        raise InvalidInput("no", key="loss")
    with pytest.raises(InvalidInput, match=r"^other\.yaml: no$"), naming("job.yaml", "model"):
        raise InvalidInput("no", path="other.yaml")
