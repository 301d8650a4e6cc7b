"""A neighbour or driver that lies: whatever one field of a message says, the stage ends naming it, or goes on."""

import pytest
from hypothesis import HealthCheck, given, settings

from ravnest.errors import RunFailed
from ravnest.stage import epoch_messages as em
from ravnest.stage import messages as m
from tests.support.wire import mutations
from tests.unit.ravnest.stage.test_runtime import Bench

FROM_PREVIOUS = [
    m.Activation(micro_batch=0),
    m.GlobalNorm(update=0, norm_sq=1.0),
    m.TiedWeights(version=1, names=()),
    m.EvaluationActivation(evaluation=1, batch=0, batches=1),
]
FROM_NEXT = [
    m.Gradient(micro_batch=0, snapshot_round=1, norm_sq=1.0, queued_s=0.1, busiest_s=0.1),
    m.TiedGradients(update=0, names=()),
    m.EvaluationCredit(evaluation=1, batch=0),
]
FROM_DRIVER = [
    m.Alive(sent_s=1.0),
    m.RoundCommittedMessage(round=1),
    m.RoundOpenedMessage(round=1),
    m.FinishRounds(up_to=1, updates=1, final=True),
    m.Evaluate(evaluation=1, batches=1),
    em.RingsReformedMessage(epoch=1, committed=0, rings=(), lost=()),
    em.RoundsResumedMessage(epoch=1, kept=(), hand_on=((0, 1, "c0.s1", ()),), first_round=1),
    em.SendState(round=1),
]


@pytest.fixture(scope="module")
def benches():
    return {"now": Bench("c0.s1")}


@pytest.mark.parametrize(
    ("peer", "examples"), [("c0.s0", FROM_PREVIOUS), ("c0.s2", FROM_NEXT), (m.DRIVER, FROM_DRIVER)]
)
def test_a_stage_names_the_liar_or_goes_on(benches, peer, examples):
    @settings(max_examples=60, suppress_health_check=[HealthCheck.too_slow])
    @given(mutations(examples))
    def lie(message):
        bench = benches["now"]
        tensors = bench.activation()[1:] if peer == "c0.s0" else bench.gradient()[1:] if peer == "c0.s2" else ()
        bench.say(peer, message, *tensors)
        said = peer
        try:
            bench.turn()
        except RunFailed as failed:
            said = str(failed)
        if bench.stage.machine.failure is not None:
            benches["now"] = Bench("c0.s1")
        assert peer in said

    lie()


def test_a_number_out_of_bounds_ends_the_run_with_the_name_of_who_sent_it():
    bench = Bench("c0.s1")
    bench.say("c0.s2", m.Gradient(micro_batch=0, queued_s=float("inf")), *bench.gradient()[1:])
    with pytest.raises(RunFailed, match=r"c0\.s2 sent.*queued_s"):
        bench.turn()
