import pytest
import torch

from ravnest.errors import InvalidInput
from ravnest.job.initial_weights import make_weights
from ravnest.splitting import StageModule
from ravnest.stage import messages as m
from ravnest.stage.rings import SegmentAverage, StageRings
from ravnest.stage.rounds import StageRounds
from ravnest.training.weights import VersionedWeights
from ring_allreduce.transport import InProcessNetwork
from tests.support.local import JOB_FILE, setups_of, tiny_job
from tests.support.state import saved

JOB = {"model": {"factory": "tiny:cnn"}, "data": {"factory": "tiny:images"}}


class Held:
    """A lone cluster's stage of the CNN with its segments."""

    def __init__(self, parts=(1,), stage="c0.s0", averaging=None):
        job = tiny_job(**JOB, averaging=averaging or {})
        setups, _ = setups_of(job, parts=parts)
        self.setup = setups[stage]
        self.start = make_weights(job, JOB_FILE)
        self.module = StageModule(self.setup.program, self.start)
        self.weights = VersionedWeights(self.module, job.optimizer)
        endpoint = InProcessNetwork().endpoint(self.setup.name, m.codec())
        self.rounds = StageRounds(self.setup, self.module, self.weights, StageRings(self.setup, endpoint))

    def move(self, by):
        for segment in self.setup.segments:
            self.weights.add_correction(segment.parameters, torch.full_like(self.weights.flat(segment.parameters), by))

    def buffers(self):
        return dict(self.module.named_buffers())


def average(contribution, *, vector=None, buffers=None, counters=None, total=8.0):
    return SegmentAverage(
        contribution.vector if vector is None else vector,
        contribution.buffers if buffers is None else buffers,
        counters or contribution.counters,
        total,
    )


def test_a_contribution_is_progress_and_buffers_with_counters_beside():
    held = Held()
    (segment,) = held.setup.segments
    held.move(0.25)
    (part,) = held.rounds.snapshot(1, samples=8)
    assert part.weight == 8.0
    assert part.vector.shape == (segment.progress.elements,)
    assert part.vector == pytest.approx(torch.full((segment.progress.elements,), 0.25), abs=1e-6)
    expected = torch.cat([held.start[name].flatten() for name in segment.buffers])
    assert torch.equal(part.buffers, expected)
    assert part.buffers.shape == (segment.averaged_buffers.elements,)
    assert segment.counters == ("bn1.num_batches_tracked", "bn2.num_batches_tracked")
    assert part.counters == (0, 0)


def test_progress_counts_once():
    held = Held()
    held.move(0.25)
    held.rounds.snapshot(1, samples=8)
    held.move(0.5)
    (part,) = held.rounds.snapshot(2, samples=8)
    assert part.vector[0].item() == pytest.approx(0.5, abs=1e-6)


def test_a_merge_moves_the_anchor_and_keeps_what_was_learned_since():
    held = Held()
    (segment,) = held.setup.segments
    before = held.rounds.anchor(segment.ring).clone()
    held.move(0.25)
    (part,) = held.rounds.snapshot(1, samples=8)
    held.move(0.5)
    held.rounds.merge(1, {segment.ring: average(part, vector=torch.ones_like(part.vector))})
    assert torch.equal(held.rounds.anchor(segment.ring), before + 1.0)
    live = held.weights.flat(segment.parameters)
    assert torch.allclose(live, before + 1.5, atol=1e-6)
    held.rounds.adopt_anchor()
    assert torch.equal(held.weights.flat(segment.parameters), before + 1.0)


def test_buffers_are_set_to_the_average_and_counters_never_go_back():
    held = Held()
    (segment,) = held.setup.segments
    held.move(0.0)
    (part,) = held.rounds.snapshot(1, samples=8)
    held.module.set_buffer("bn1.num_batches_tracked", torch.tensor(9))
    held.rounds.merge(1, {segment.ring: average(part, buffers=torch.full_like(part.buffers, 3.0), counters=(4, 6))})
    found = held.buffers()
    assert torch.equal(found["bn1.running_mean"], torch.full((6,), 3.0))
    assert (found["bn1.num_batches_tracked"].item(), found["bn2.num_batches_tracked"].item()) == (9, 6)
    assert found["bn2.num_batches_tracked"].dtype == torch.int64


def test_what_statistics_have_learned_since_the_snapshot_is_kept():
    """Else a round for each update would set them back each time, and they would stay where they were at first."""
    held = Held()
    (segment,) = held.setup.segments
    mean = held.buffers()["bn1.running_mean"]
    for number in range(1, 4):
        (part,) = held.rounds.snapshot(number, samples=8)
        held.module.set_buffer("bn1.running_mean", mean + number)
        held.rounds.merge(number, {segment.ring: average(part)})
    assert torch.equal(held.buffers()["bn1.running_mean"], mean + 3)


def test_a_round_that_nobody_trained_for_leaves_the_buffers():
    held = Held()
    (segment,) = held.setup.segments
    (part,) = held.rounds.snapshot(1, samples=0)
    held.rounds.merge(1, {segment.ring: average(part, buffers=torch.zeros_like(part.buffers), total=0.0)})
    assert torch.equal(held.buffers()["bn1.running_var"], torch.ones(6))


def test_old_buffers_are_replaced_and_never_written():
    held = Held()
    (segment,) = held.setup.segments
    old = held.buffers()["bn1.running_mean"]
    copy = old.clone()
    (part,) = held.rounds.snapshot(1, samples=8)
    held.rounds.merge(1, {segment.ring: average(part, buffers=torch.full_like(part.buffers, 2.0))})
    assert torch.equal(held.buffers()["bn1.running_mean"], torch.full((6,), 2.0))
    assert torch.equal(old, copy)


@pytest.mark.parametrize(("weighting", "weights"), [("samples", [8.0, 0.0]), ("equal", [1.0, 0.0])])
def test_weights_follow_the_job(weighting, weights):
    held = Held(averaging={"weighting": weighting})
    found = [held.rounds.snapshot(number, samples)[0].weight for number, samples in ((1, 8), (2, 0))]
    assert found == weights


NESTEROV = {"outer": {"nesterov": {"lr": 0.5, "momentum": 0.8}}}


def test_an_outer_optimizer_moves_the_anchor_and_no_buffer():
    held = Held(averaging=NESTEROV)
    (segment,) = held.setup.segments
    before = held.rounds.anchor(segment.ring).clone()
    for number, moved in ((1, 0.5 * 1.8), (2, 0.5 * (1 + 0.8 * 1.8))):
        (part,) = held.rounds.snapshot(number, samples=8)
        ones, threes = torch.ones_like(part.vector), torch.full_like(part.buffers, 3.0)
        held.rounds.merge(number, {segment.ring: average(part, vector=ones, buffers=threes)})
        before += moved
        torch.testing.assert_close(held.rounds.anchor(segment.ring), before)
        torch.testing.assert_close(held.weights.flat(segment.parameters), before)
        assert torch.equal(held.buffers()["bn1.running_mean"], torch.full((6,), 3.0))


def test_a_round_that_nobody_trained_for_does_not_coast():
    held = Held(averaging=NESTEROV)
    (segment,) = held.setup.segments
    for number, total in ((1, 8.0), (2, 0.0)):
        (part,) = held.rounds.snapshot(number, samples=0)
        vector = torch.full_like(part.vector, total / 8)
        anchor = held.rounds.anchor(segment.ring).clone()
        held.rounds.merge(number, {segment.ring: average(part, vector=vector, total=total)})
        assert torch.equal(held.rounds.anchor(segment.ring), anchor) == (total == 0)


def test_the_outer_state_goes_on_under_the_parameters_names_and_shapes():
    first, second = Held(averaging=NESTEROV), Held(averaging=NESTEROV)
    (segment,) = first.setup.segments
    assert first.rounds.outer_state() == {}
    second.rounds.load_outer_state({})
    generator = torch.Generator().manual_seed(0)
    vectors = [torch.randn(segment.progress.elements, generator=generator) for _ in range(3)]

    def merge(held, number, vector):
        (part,) = held.rounds.snapshot(number, samples=8)
        held.rounds.merge(number, {segment.ring: average(part, vector=vector)})

    merge(first, 1, vectors[0])
    merge(first, 2, vectors[1])
    state = first.rounds.outer_state()
    assert {name: tensor.shape for (name, _), tensor in state.items()} == first.weights.shapes(segment.parameters)
    assert {key for _, key in state} == {"outer_momentum"}
    second.rounds.load_outer_state(state)
    steps = []
    for held in (first, second):
        before = held.rounds.anchor(segment.ring).clone()
        merge(held, 3, vectors[2])
        steps.append(held.rounds.anchor(segment.ring) - before)
    assert torch.allclose(*steps, atol=1e-6)


def test_an_outer_state_that_does_not_fit_is_refused():
    held = Held(averaging=NESTEROV)
    (segment,) = held.setup.segments
    state = {
        (name, "outer_momentum"): torch.zeros(shape) for name, shape in held.weights.shapes(held.weights.names).items()
    }
    with pytest.raises(InvalidInput, match="no outer optimizer"):
        Held().rounds.load_outer_state(state)
    state.pop((segment.parameters[0], "outer_momentum"))
    with pytest.raises(InvalidInput, match="is not of each parameter"):
        held.rounds.load_outer_state(state)


def test_the_keeper_gives_its_weights_under_the_original_names_and_shapes():
    held = Held()
    weights, optimizer = saved(held.rounds)
    assert weights.keys() == held.start.keys()
    assert all(torch.equal(tensor, held.start[name]) for name, tensor in weights.items())
    assert optimizer == {}


def test_each_segment_is_kept_once_over_the_fleet():
    job = tiny_job(**JOB)
    setups, _ = setups_of(job, parts=(2, 1))
    names = [name for stage in setups for name in saved(Held((2, 1), stage).rounds)[0]]
    assert sorted(names) == sorted(make_weights(job, JOB_FILE))
