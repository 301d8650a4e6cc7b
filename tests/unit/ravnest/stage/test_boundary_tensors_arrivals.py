import pytest
import torch

from ravnest.errors import RunFailed
from ravnest.splitting import ValueSpec
from ravnest.stage import messages as m
from ravnest.stage import state_messages as sm
from ravnest.stage.boundary_tensors import check_tensors, expected_sender
from ring_allreduce.transport import Delivery
from tests.support.local import setups_of, tiny_job

FORWARD = (
    m.Activation(micro_batch=0),
    m.GlobalNorm(update=0, norm_sq=1.0),
    m.EvaluationActivation(evaluation=1, batch=0, batches=1),
    m.TiedWeights(version=1, names=()),
)
BACKWARD = (m.Gradient(micro_batch=0), m.TiedGradients(update=0, names=()))
CREDIT = (m.EvaluationCredit(evaluation=1, batch=0),)
ORDERS = (
    m.Go(),
    m.RoundOpenedMessage(round=1),
    m.RoundCommittedMessage(round=1),
    m.Drain(),
    m.FinishRounds(up_to=1, updates=1, final=True),
    m.Evaluate(evaluation=1, batches=1),
    m.Stop(),
    m.Alive(),
    sm.StateWanted(round=1, pieces=1),
)
REPORTS = (
    m.StageStarted(process_bytes=1),
    m.Updated(update=0, staleness=(), losses=(), lr=0.1),
    m.ContributionFinishedMessage(round=1, update=1),
    m.RingFinishedMessage(round=1, ring=0, epoch=0),
    m.RoundMerged(round=1),
    sm.StateSent(round=1, pieces=1),
    m.Drained(micro_batches=3, updates=1),
    m.RoundsFinished(up_to=1),
    m.EvaluationFinished(evaluation=1, loss=(1.0, 1), metrics=()),
)
SPECS = (
    ValueSpec("x", torch.float32, (None, 8, 16), needs_gradient=True),
    ValueSpec("mask", torch.bool, (8,), needs_gradient=False),
)


@pytest.fixture(scope="module")
def stages():
    setups, _ = setups_of(tiny_job(), parts=(3,))
    return [setups[f"c0.s{index}"] for index in range(3)]


def senders(stage, messages):
    return {expected_sender(stage, message) for message in messages}


@pytest.mark.parametrize(("index", "before", "after"), [(0, None, "c0.s1"), (1, "c0.s0", "c0.s2"), (2, "c0.s1", None)])
def test_neighbours_send_what_flows_past(stages, index, before, after):
    assert senders(stages[index], FORWARD) == {before}
    assert senders(stages[index], BACKWARD) == {after}


@pytest.mark.parametrize(("index", "last"), [(0, "c0.s2"), (1, None), (2, None)])
def test_credits_go_from_the_last_stage_to_the_first(stages, index, last):
    assert senders(stages[index], CREDIT) == {last}


def test_a_lone_stage_has_no_neighbours():
    setups, _ = setups_of(tiny_job(), parts=(1,))
    assert senders(setups["c0.s0"], (*FORWARD, *BACKWARD)) == {None}


@pytest.mark.parametrize("index", range(3))
def test_only_the_driver_gives_orders_and_nobody_reports_to_a_stage(stages, index):
    assert senders(stages[index], ORDERS) == {m.DRIVER}
    assert senders(stages[index], REPORTS) == {None}


def delivery(*tensors):
    return Delivery("c0.s0", 0, m.Activation(micro_batch=4), tensors)


@pytest.mark.parametrize("batch", [1, 4, 7])
def test_the_batch_size_is_free(batch):
    assert check_tensors(delivery(torch.zeros(batch, 8, 16), torch.ones(8, dtype=torch.bool)), SPECS) is None


X, MASK = torch.zeros(4, 8, 16), torch.ones(8, dtype=torch.bool)


@pytest.mark.parametrize(
    ("tensors", "said"),
    [
        ((), "0 tensors, expected 2"),
        ((X,), "1 tensors, expected 2"),
        ((X, MASK, MASK), "3 tensors, expected 2"),
        ((X.double(), MASK), r"x as torch.float64 \(4, 8, 16\), expected torch.float32"),
        ((X.bfloat16(), MASK), "torch.bfloat16"),
        ((X, MASK.float()), "mask as torch.float32"),
        ((X[:, :7], MASK), r"x as torch.float32 \(4, 7, 16\)"),
        ((X[0], MASK), r"x as torch.float32 \(8, 16\)"),
        ((X[:0], MASK), r"x as torch.float32 \(0, 8, 16\)"),
        ((X.unsqueeze(0), MASK), r"\(1, 4, 8, 16\)"),
        ((X, MASK[:7]), r"mask as torch.bool \(7,\)"),
        ((MASK, X), "x as torch.bool"),
    ],
)
def test_what_does_not_fit_names_sender_tensor_and_expectation(tensors, said):
    with pytest.raises(RunFailed, match=rf"c0\.s0 sent Activation with .*{said}"):
        check_tensors(delivery(*tensors), SPECS)
