"""StageRuntime among peers that the test plays."""

from dataclasses import replace

import msgspec
import pytest
import torch

from ravnest.driver.preparation import needed
from ravnest.errors import NodeLost, RunFailed, WrongMessage
from ravnest.job.initial_weights import make_weights
from ravnest.stage import epoch_messages as em
from ravnest.stage import messages as m
from ravnest.stage.assembling import assemble, batch_source
from ravnest.stage.executor import ComputeFinished, InlineExecutor
from ravnest.stage.reports import COMPUTE, NETWORK
from ring_allreduce import PeerStalled
from ring_allreduce.ring import Chunk
from ring_allreduce.rounds import SILENCE_FLOOR_S
from ring_allreduce.transport import InProcessNetwork, Lane
from tests.support.local import JOB_FILE, local_run, setups_of, tiny_job


class Bench:
    """The real stage `name` of a pipeline of three; the others and the driver are bare endpoints."""

    def __init__(self, name, timeline=False, executor=None, **changes):
        torch.set_num_threads(1)
        self.now_s = 0.0
        self.job = tiny_job(**{"wait_for_driver_minutes": 0, **changes})
        setups, _ = setups_of(self.job, parts=(3,))
        self.setup = replace(setups[name], timeline=timeline)
        self.network = InProcessNetwork(now=self.now)
        self.peers = {peer: self.network.endpoint(peer, m.codec()) for peer in (m.DRIVER, *setups)}
        self.network.connect_all()
        weights = make_weights(self.job, JOB_FILE)
        self.stage = assemble(
            self.setup,
            self.peers[name],
            InlineExecutor() if executor is None else executor,
            batch_source(self.setup),
            {one: weights[one] for one in needed(self.setup)},
            {},
            0,
            now=self.now,
        )

    def now(self):
        return self.now_s

    def say(self, peer, message, *tensors):
        self.peers[peer].send(self.setup.name, Lane.PIPELINE, message, tensors)

    def turn(self, times=1, after_s=0.0):
        self.now_s += after_s
        for _ in range(times):
            self.stage.turn(0.0)

    def heard(self, peer, but=m.Alive):
        return [each for each in self.peers[peer].poll(0.0) if not isinstance(each.message, but)]

    def tensors(self, specs):
        shapes = [[self.job.micro_batch if size is None else size for size in spec.shape] for spec in specs]
        return [torch.zeros(shape, dtype=spec.dtype) for shape, spec in zip(shapes, specs, strict=True)]

    def activation(self, micro_batch=0):
        return m.Activation(micro_batch=micro_batch), *self.tensors(self.setup.program.inputs)

    def gradient(self, micro_batch=0):
        needing = [spec for spec in self.setup.program.outputs if spec.needs_gradient]
        return m.Gradient(micro_batch=micro_batch), *self.tensors(needing)

    def evaluation_activation(self):
        header = m.EvaluationActivation(evaluation=1, batch=0, batches=1)
        return header, *self.tensors(self.setup.program.inputs)


def seconds(bench, count):
    """Let so many seconds pass, and a turn in each: a stage that takes none for long has stood still itself."""
    for _ in range(int(count)):
        bench.turn(after_s=1.0)


def test_a_first_stage_injects_only_after_go():
    bench = Bench("c0.s0")
    bench.turn(5)
    assert bench.heard("c0.s1") == []
    bench.say(m.DRIVER, m.Go())
    bench.turn(10)
    sent = [each.message.micro_batch for each in bench.heard("c0.s1")]
    assert sent == [0, 1, 2, 3, 4, 5]  # the groups of two updates: the second is one update late


class HeldExecutor:
    """Computes when the test says so, as another thread would: the listener hears of it, and not the stage's turn."""

    def __init__(self):
        self.submitted = []

    def listen(self, listener):
        self.listener = listener

    def submit(self, instruction, work):
        self.submitted.append((instruction, work))

    def finished(self):
        return []

    def compute(self, error=None):
        instruction, work = self.submitted.pop(0)
        return self.listener(
            ComputeFinished(instruction, error=error) if error else ComputeFinished(instruction, result=work())
        )


@pytest.mark.parametrize("error", [None, RunFailed("the loss is nan")])
def test_once_a_turn_has_raised_nothing_more_is_computed_or_sent(error):
    executor = HeldExecutor()
    bench = Bench("c0.s0", executor=executor)
    bench.say(m.DRIVER, m.Go())
    bench.turn()
    assert executor.compute()
    assert len(bench.heard("c0.s1")) == 1
    assert len(executor.submitted) == 1
    with pytest.raises(NodeLost, match="the driver has been silent"):
        seconds(bench, 2 * SILENCE_FLOOR_S)
    computations = bench.stage.computations
    bench.heard(m.DRIVER)
    assert executor.compute(error)  # that nobody waits for it
    assert executor.submitted == []
    assert bench.heard("c0.s1") == []
    assert bench.heard(m.DRIVER) == []
    assert bench.stage.computations == computations
    assert bench.stage.stopped


def test_a_middle_stage_passes_on_what_it_computes():
    bench = Bench("c0.s1")
    bench.say("c0.s0", *bench.activation(0))
    bench.turn(3)
    (delivery,) = bench.heard("c0.s2")
    assert delivery.message == m.Activation(micro_batch=0)
    assert [tensor.dtype for tensor in delivery.tensors] == [spec.dtype for spec in bench.setup.program.outputs]


@pytest.mark.parametrize("sender", [m.DRIVER, "c0.s2"])
def test_a_message_from_the_wrong_peer_ends_the_stage_and_names_both(sender):
    bench = Bench("c0.s1")
    bench.say(sender, *bench.activation(0))
    with pytest.raises(RunFailed, match=f"{sender} sent Activation, which is not its to send"):
        bench.turn()


def test_a_report_to_a_stage_ends_it():
    bench = Bench("c0.s1")
    bench.say(m.DRIVER, m.RoundsFinished(up_to=0))
    with pytest.raises(RunFailed, match="not its to send"):
        bench.turn()


SPOILED = {
    "another dtype": (lambda tensors: [tensor.double() for tensor in tensors], "float64"),
    "another shape": (lambda tensors: [tensor[..., :-1] for tensor in tensors], r"\(4, 8, 15\)"),
    "a dimension more": (lambda tensors: [tensor.unsqueeze(0) for tensor in tensors], r"\(1, 4, 8, 16\)"),
    "an empty batch": (lambda tensors: [tensor[:0] for tensor in tensors], r"\(0, 8, 16\)"),
    "one too few": (lambda tensors: tensors[1:], r"\d tensors, expected \d"),
    "one too many": (lambda tensors: [*tensors, tensors[0]], r"\d tensors, expected \d"),
}
"""What a peer may do to the tensors of a message → (how, what is said of it)."""


@pytest.mark.parametrize("spoil", SPOILED)
@pytest.mark.parametrize(
    ("kind", "sender", "message"),
    [
        ("Activation", "c0.s0", Bench.activation),
        ("Gradient", "c0.s2", Bench.gradient),
        ("EvaluationActivation", "c0.s0", Bench.evaluation_activation),
    ],
)
def test_tensors_of_the_wrong_form_end_the_stage_before_anything_is_computed(kind, sender, message, spoil):
    bench = Bench("c0.s1")
    bench.say("c0.s0", *bench.activation(0))
    bench.turn(3)
    before = bench.stage.computations
    header, *tensors = message(bench, *([1] if kind == "Activation" else []))
    change, said = SPOILED[spoil]
    bench.say(sender, header, *change(tensors))
    with pytest.raises(RunFailed, match=f"^{sender} sent {kind} with .*{said}"):
        bench.turn(3)
    assert bench.stage.computations == before


@pytest.mark.parametrize(("sender", "message"), [("c0.s2", Bench.gradient), ("c0.s0", Bench.evaluation_activation)])
def test_tensors_of_the_right_form_are_computed_with(sender, message):
    bench = Bench("c0.s1")
    bench.say("c0.s0", *bench.activation(0))
    bench.turn(3)
    before = bench.stage.computations
    bench.say(sender, *message(bench))
    bench.turn(3)
    assert bench.stage.computations == before + 1


def test_a_micro_batch_that_comes_twice_ends_the_stage():
    bench = Bench("c0.s1")
    for _ in range(2):
        bench.say("c0.s0", *bench.activation(0))
    with pytest.raises(RunFailed, match="stage 1 of 3"):
        bench.turn()


def test_a_stranger_has_no_effect():
    bench = Bench("c0.s1")
    stranger = bench.network.endpoint("stranger", m.codec())
    impostor = bench.network.endpoint("other run", m.codec(), token=bytes(range(16)))
    for endpoint in (stranger, impostor):
        endpoint.connect({"c0.s1": bench.peers["c0.s1"].address})
        endpoint.send("c0.s1", Lane.PIPELINE, m.Stop())
        endpoint.send("c0.s1", Lane.PIPELINE, bench.activation(0)[0], bench.activation(0)[1:])
    bench.peers["c0.s1"].put(Lane.PIPELINE, [memoryview(b"garbage"), memoryview(b"")])
    bench.turn(3)
    assert bench.heard("c0.s2") == []
    assert not bench.stage.stopped


def test_of_a_chunk_that_is_not_finite_the_driver_is_told_once_and_the_stage_goes_on():
    run = local_run(tiny_job(), parts=(1, 1))
    stage = run.stages["c0.s0"]
    (segment,) = stage.setup.segments[:1]
    header = Chunk(ring=str(segment.ring), round=1, phase="reduce", block=0, start=0, stop=2, weight=1.0)
    for ring in (header.ring, header.ring, "of nobody"):
        sent = msgspec.structs.replace(header, ring=ring)
        run.stages["c1.s0"].endpoint.send("c0.s0", Lane.BULK, sent, [torch.tensor([0.0, float("nan")])])
        stage.turn(0.0)
    stage.turn(0.0)
    told = [each.message for each in run.driver.poll(0.0) if isinstance(each.message, em.MemberRefused)]
    ((refused),) = told
    assert (refused.member, refused.ring, refused.epoch) == ("c1.s0", segment.ring, 0)
    assert "NaN" in refused.reason
    assert not stage.stopped


@pytest.mark.parametrize(
    "change", [lambda header, x: [x.double()], lambda header, x: [x, x], lambda header, x: [x[:, 1:]]]
)
def test_what_a_neighbour_sends_is_no_fault_of_the_job_s(change):
    bench = Bench("c0.s1")
    header, activation, *rest = bench.activation(0)
    bench.say("c0.s0", header, *change(header, activation), *rest)
    with pytest.raises(WrongMessage, match=r"c0\.s0 sent Activation with"):
        bench.turn()


def test_it_says_each_second_that_it_lives_and_what_it_has_got_done():
    bench = Bench("c0.s1")
    bench.turn()
    bench.say("c0.s0", *bench.activation(0))
    bench.turn(3)
    bench.turn(after_s=1.0)
    told = [each.message for each in bench.heard(m.DRIVER, but=m.MemoryPeaks | m.LinksUsed)]
    assert told == [m.Alive(finished=0, sent_s=0.0, heard_s=0.0), m.Alive(finished=1, sent_s=1.0, heard_s=0.0)]


def test_its_sign_of_life_returns_the_drivers_clock_as_it_heard_it():
    bench = Bench("c0.s1")
    bench.turn()
    bench.say(m.DRIVER, m.Alive(sent_s=70.0))
    bench.turn(after_s=0.25)
    bench.turn(after_s=0.75)
    last = [each.message for each in bench.heard(m.DRIVER, but=m.MemoryPeaks | m.LinksUsed)][-1]
    assert (last.echo_s, last.heard_s, last.sent_s) == (70.0, 0.25, 1.0)


def recorded(bench):
    """The stage's timeline as (lane, kind, number), once the driver has let it stop."""
    bench.say(m.DRIVER, m.Stop())
    bench.turn()
    pieces = [each.message for each in bench.heard(m.DRIVER) if isinstance(each.message, m.Spans)]
    return [span for piece in pieces for span in zip(piece.lanes, piece.kinds, piece.numbers, strict=True)]


def test_a_timeline_holds_what_was_computed_waited_for_received_and_sent():
    bench = Bench("c0.s1", timeline=True)
    bench.turn()
    bench.say("c0.s0", *bench.activation(0))
    bench.turn(2, after_s=0.5)
    bench.say("c0.s2", *bench.gradient(0))
    bench.turn(2, after_s=0.25)
    spans = recorded(bench)
    assert [span for span in spans if span[0] == NETWORK] == [
        (NETWORK, "receive activation", 0),
        (NETWORK, "send activation", 0),
        (NETWORK, "receive gradient", 0),
        (NETWORK, "send gradient", 0),
    ]
    assert [kind for lane, kind, _ in spans if lane == COMPUTE] == ["input", "input"]  # inline compute takes no time


def test_nothing_is_recorded_unless_it_is_wanted():
    bench = Bench("c0.s1")
    bench.turn()
    bench.say("c0.s0", *bench.activation(0))
    bench.turn(3)
    assert recorded(bench) == []


def test_a_driver_that_falls_silent_is_lost():
    bench = Bench("c0.s1")
    for _ in range(5):
        bench.say(m.DRIVER, m.Alive())
        bench.turn(after_s=1.0)
    bench.say("c0.s0", *bench.activation(0))  # a neighbour's life is not the driver's
    seconds(bench, SILENCE_FLOOR_S)
    with pytest.raises(NodeLost, match="the driver has been silent for 21 s"):
        bench.turn(after_s=1.0)


def test_what_a_driver_that_stands_still_does_not_take_waits_in_order(monkeypatch):
    bench = Bench("c0.s2")
    endpoint = bench.peers["c0.s2"]
    send = endpoint.send

    def stalls(peer, lane, message, tensors=()):
        if peer == m.DRIVER:
            raise PeerStalled(peer, lane.value, 268)
        send(peer, lane, message, tensors)

    monkeypatch.setattr(endpoint, "send", stalls)
    bench.say(m.DRIVER, m.RoundOpenedMessage(round=1))
    for micro_batch in range(bench.job.update_every):
        bench.say("c0.s1", *bench.activation(micro_batch))
    bench.turn(20)
    assert bench.heard(m.DRIVER, but=()) == []
    monkeypatch.undo()
    bench.turn()
    told = [type(each.message) for each in bench.heard(m.DRIVER)]
    wanted = [m.Updated, m.ContributionFinishedMessage, m.RingFinishedMessage]
    assert [each for each in told if each in wanted] == wanted


def test_a_pause_of_this_stage_is_not_the_driver_s_silence():
    bench = Bench("c0.s1")
    for _ in range(5):
        bench.say(m.DRIVER, m.Alive())
        bench.turn(after_s=1.0)
    for _ in range(2):
        bench.turn(after_s=7200.0)
    with pytest.raises(NodeLost, match=r"the driver has been silent for 2\d s"):
        seconds(bench, 60)


def test_it_stops_when_it_is_told_to():
    bench = Bench("c0.s1")
    bench.say(m.DRIVER, m.Stop())
    bench.turn()
    assert bench.stage.stopped


def test_a_failed_computation_surfaces_in_the_turn():
    bench = Bench("c0.s1")
    bench.stage.compute.forward = lambda micro_batch, received: 1 / 0
    bench.say("c0.s0", *bench.activation(0))
    with pytest.raises(ZeroDivisionError):
        bench.turn(2)


def test_a_loss_that_is_not_a_number_ends_the_run_and_names_the_cluster():
    job = tiny_job()
    run = local_run(job, parts=(2,))
    first = run.stages["c0.s0"].compute.weights
    first.add_correction(first.names, torch.full_like(first.flat(), float("nan")))
    with pytest.raises(RunFailed, match="the loss of micro-batch 0 of c0 is nan: diverged"):
        run.run()


def test_without_a_driver_a_first_stage_finishes_its_window_and_goes_on_with_another_one():
    bench = Bench("c0.s0", wait_for_driver_minutes=5, update_every=1, max_staleness=1)
    bench.say(m.DRIVER, m.Go())
    bench.turn(5)
    assert len(bench.heard("c0.s1")) == 2
    seconds(bench, SILENCE_FLOOR_S + 2)
    for micro_batch in (0, 1):
        bench.say("c0.s1", *bench.gradient(micro_batch))
    bench.turn(5)
    assert bench.heard("c0.s1") == [], "it begins nothing new"
    bench.heard(m.DRIVER)
    bench.peers[m.DRIVER].epoch = 1
    at = bench.peers[m.DRIVER].address
    bench.say(m.DRIVER, em.TakeOver(term=1, host=at.host, pipeline_port=at.pipeline_port, bulk_port=at.bulk_port))
    bench.turn(5)
    position = next(each.message for each in bench.heard(m.DRIVER) if isinstance(each.message, em.StagePosition))
    assert (position.term, position.version, position.committed, position.drains) == (1, 2, 0, False)
    assert len(bench.heard("c0.s1")) == 2
    bench.peers[m.DRIVER].epoch = 0
    bench.say(m.DRIVER, m.Stop())  # of the driver before
    bench.turn(5)
    assert not bench.stage.stopped
    with pytest.raises(NodeLost, match="the driver has been silent"):
        seconds(bench, 300 + 2 * SILENCE_FLOOR_S)
