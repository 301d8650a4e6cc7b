import pytest
import torch
from torch import nn

from ravnest.errors import RunFailed
from ravnest.splitting import ValueSpec
from ravnest.stage import messages as m
from ravnest.stage.tied import TiedParameters, TiedSetup
from ravnest.training.optimizer import OptimizerConfig
from ravnest.training.weights import VersionedWeights

SPECS = {name: ValueSpec(name, torch.float32, (2,), needs_gradient=False) for name in ("far", "near")}
OWNER = TiedSetup(lent=("far",), specs=SPECS)
BETWEEN = TiedSetup(borrowed=("near",), passed_on=("far",), specs=SPECS)
BORROWER = TiedSetup(borrowed=("far",), specs=SPECS)


class Module(nn.Module):
    def __init__(self, *names):
        super().__init__()
        for name in names:
            self.register_parameter(name, nn.Parameter(torch.ones(2)))

    def set_parameter(self, name, parameter):
        self._parameters[name] = parameter


def stage(setup, *names, max_staleness=1):
    module = Module(*names)
    weights = VersionedWeights(module, OptimizerConfig(name="sgd", lr=1.0), version=5, borrowed=setup.borrowed)
    return module, weights, TiedParameters(setup, weights, update_every=2, max_staleness=max_staleness)


def backward(module, weights, name, times=1.0):
    parameters = weights.current()
    (times * getattr(module, name)).sum().backward()
    weights.collect(parameters)


def weights_message(version, *names):
    return m.TiedWeights(version=version, names=names)


def test_an_owner_adds_what_comes_from_behind_and_lends_copies_of_each_change():
    module, weights, tied = stage(OWNER, "far", "own")
    backward(module, weights, "far")
    tied.arrived_gradients(m.TiedGradients(update=5, names=("far",)), [torch.full((2,), 3.0)])
    tied.close_group(11)
    assert module.far.grad.tolist() == [4.0, 4.0]
    assert tied.parcels() == []
    weights.step(1.0, copy=False)
    tied.changed()
    (parcel,) = tied.parcels()
    assert (parcel.step, parcel.message) == (+1, weights_message(6, "far"))
    assert parcel.tensors[0].tolist() == [-3.0, -3.0]
    assert parcel.tensors[0].data_ptr() != module.far.data_ptr()
    assert tied.parcels() == []


def test_a_borrower_adopts_the_newest_and_sends_its_part_back():
    module, weights, tied = stage(BORROWER, "far", "own")
    tied.arrived_weights(weights_message(6, "far"), [torch.zeros(2)])
    tied.arrived_weights(weights_message(7, "far"), [torch.full((2,), 7.0)])
    assert module.far.tolist() == [1.0, 1.0]
    tied.adopt(14)
    assert module.far.tolist() == [7.0, 7.0]
    backward(module, weights, "far", 2.0)
    backward(module, weights, "far", 3.0)
    tied.close_group(15)
    (parcel,) = tied.parcels()
    assert (parcel.step, parcel.message) == (-1, m.TiedGradients(update=7, names=("far",)))
    assert parcel.tensors[0].tolist() == [5.0, 5.0]


def test_a_stage_between_passes_on_both_ways_and_adds_its_own():
    module, weights, tied = stage(BETWEEN, "near", "own")
    far, near = torch.full((2,), 8.0), torch.full((2,), 9.0)
    tied.arrived_weights(weights_message(6, "far", "near"), [far, near])
    (parcel,) = tied.parcels()
    assert (parcel.step, parcel.message) == (+1, weights_message(6, "far"))
    assert parcel.tensors[0] is far
    tied.adopt()
    assert module.near.tolist() == [9.0, 9.0]
    backward(module, weights, "near")
    tied.arrived_gradients(m.TiedGradients(update=6, names=("far",)), [torch.full((2,), 4.0)])
    tied.close_group(13)
    (parcel,) = tied.parcels()
    assert parcel.message == m.TiedGradients(update=6, names=("far", "near"))
    assert [tensor.tolist() for tensor in parcel.tensors] == [[4.0, 4.0], [1.0, 1.0]]


def test_what_waits_is_counted():
    _, _, tied = stage(BETWEEN, "near")
    tied.arrived_weights(weights_message(6, "far", "near"), [torch.ones(2), torch.ones(2)])
    assert tied.held_bytes == 8  # what is passed on does not wait
    tied.arrived_gradients(m.TiedGradients(update=6, names=("far",)), [torch.ones(2)])
    assert tied.held_bytes == 16
    tied.adopt()
    assert tied.held_bytes == 8


def test_gradients_that_have_not_come_are_an_error_and_not_zeros():
    _, _, tied = stage(OWNER, "far")
    tied.arrived_gradients(m.TiedGradients(update=4, names=("far",)), [torch.ones(2)])
    with pytest.raises(RunFailed, match="for update 5 have not come before their last one"):
        tied.close_group(11)


def test_staleness_counts_what_is_borrowed_and_is_bounded():
    _, _, tied = stage(BORROWER, "far")
    tied.adopt(10)
    tied.adopt(11)
    tied.adopt(12)
    tied.arrived_weights(weights_message(6, "far"), [torch.ones(2)])
    tied.adopt(13)
    assert tied.staleness(5, (0, 0)) == (0, 0)
    assert tied.staleness(6, (0, 0)) == (1, 0)
    _, _, late = stage(BORROWER, "far")
    late.adopt(14)
    late.adopt(15)
    with pytest.raises(RunFailed, match="gradient for update 7 is stale by 2 updates"):
        late.staleness(7, (0, 0))


def test_a_stage_that_borrows_nothing_counts_its_own():
    _, _, tied = stage(TiedSetup(), "own")
    tied.adopt(10)
    tied.close_group(11)
    tied.changed()
    assert tied.staleness(5, (1, 0)) == (1, 0)
    assert tied.parcels() == []


@pytest.mark.parametrize(
    ("setup", "message"),
    [
        (BORROWER, weights_message(6, "near")),
        (OWNER, weights_message(6, "far")),
        (BORROWER, m.TiedGradients(update=5, names=("far",))),
        (BETWEEN, m.TiedGradients(update=5, names=("far", "near"))),
    ],
)
def test_names_that_nobody_may_send_are_refused(setup, message):
    _, _, tied = stage(setup, "far")
    with pytest.raises(RunFailed, match="which is not expected here"):
        tied.expected(message)


def test_what_is_expected_is_described():
    _, _, tied = stage(BETWEEN, "near")
    assert tied.expected(weights_message(6, "far", "near")) == [SPECS["far"], SPECS["near"]]
    assert tied.expected(m.TiedGradients(update=5, names=("far",))) == [SPECS["far"]]
