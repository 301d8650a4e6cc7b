"""A job's `averaging`, on the real stages and rings in one thread: every choice ends with one anchor that all hold."""

from functools import lru_cache

import pytest
import torch

from ravnest.job.config import StopConfig
from tests.support.local import Start, in_two_regions, local_run, tiny_job
from tests.support.state import saved

CNN = {"model": {"factory": "tiny:cnn"}, "data": {"factory": "tiny:images"}}
NESTEROV = {"nesterov": {"lr": 0.7, "momentum": 0.5}}


def anchors(run):
    """By ring: the bytes that each member holds."""
    found: dict[int, list[bytes]] = {}
    for stage in run.stages.values():
        for segment in stage.setup.segments:
            found.setdefault(segment.ring, []).append(stage.rounds.anchor(segment.ring).numpy().tobytes())
    return found


def trained(parts=(2, 3), **changes):
    run = local_run(tiny_job(**{"stop": {"samples": 480}, **changes}), parts=parts)
    run.run()
    return run


@lru_cache
def usual(parts=(2, 3)):
    """Of the default choices."""
    return trained(parts)


def held_out_loss(run):
    (evaluated,) = run.result.evaluations
    return evaluated.loss[0] / evaluated.loss[1]


@pytest.mark.parametrize("wire", ["float32", "int8"])
def test_a_ring_of_rings_learns_as_one_ring_and_all_hold_the_same(wire):
    def ended(hierarchical):
        averaging = {"wire": wire, "hierarchical": hierarchical}
        job = tiny_job(averaging=averaging, stop={"samples": 480}, max_staleness=0)
        run = local_run(job, parts=(1, 1, 2, 1, 1), changed=in_two_regions)
        groups = [segment.progress.groups for stage in run.stages.values() for segment in stage.setup.segments]
        assert all(one == ((0, 2) if hierarchical else None) for one in groups)
        run.run()
        return run

    flat, grouped = ended(False), ended(True)
    assert grouped.control.rounds_committed >= 5
    assert all(len(held) == 5 and len(set(held)) == 1 for held in anchors(grouped).values())
    assert held_out_loss(grouped) == pytest.approx(held_out_loss(flat), rel=1e-5 if wire == "float32" else 0.02)


CHOICES = [
    {"weighting": "equal"},
    {"outer": NESTEROV},
    {"wire": "bfloat16"},
    {"wire": "float16"},
    {"wire": "int8"},
    {"wire": "int4"},
    {"wire": "sparse"},
    {"weighting": "equal", "outer": NESTEROV, "wire": "int8"},
]


@pytest.mark.parametrize("averaging", CHOICES, ids=str)
def test_members_hold_the_same_anchor_and_have_learned(averaging):
    run = trained(averaging=averaging)
    assert run.control.rounds_committed >= 5
    assert all(len(held) == 2 and len(set(held)) == 1 for held in anchors(run).values())
    assert anchors(run) != anchors(usual())
    times = 2.5 if averaging.get("wire") == "sparse" else 1.15  # of which much of so few rounds is still to be sent
    assert held_out_loss(run) < times * held_out_loss(usual())


@pytest.mark.parametrize("averaging", CHOICES[-2:], ids=str)
def test_overlapping_rounds_end_with_one_anchor_too(averaging):
    run = trained(parts=(2, 3, 1), averaging=averaging, max_lag=3, average_every=16, update_every=2)
    assert run.control.rounds_committed >= 10
    assert all(len(held) == 3 and len(set(held)) == 1 for held in anchors(run).values())


def test_an_outer_step_of_the_whole_average_is_parameter_averaging():
    """lr 1 and momentum 0: bit by bit what no outer optimizer gives."""
    plain = trained(**CNN)
    outer = trained(**CNN, averaging={"outer": {"nesterov": {"lr": 1.0, "momentum": 0.0}}})
    assert plain.result.losses == outer.result.losses
    last, also = plain.result.checkpoints[-1], outer.result.checkpoints[-1]
    assert all(torch.equal(last[name], also[name]) for name in last)


@pytest.mark.parametrize("wire", ["bfloat16", "int8"])
def test_batch_norm_learns_what_it_would_without_compression(wire):
    """The first average of the statistics is of the same micro-batches, and travels as it is."""
    exact, short = (trained(**CNN, parts=(1, 1), averaging={"wire": form}) for form in ("float32", wire))
    names = [name for name in exact.result.checkpoints[0] if "running" in name]
    assert names
    for name in names:
        assert torch.equal(exact.result.checkpoints[0][name], short.result.checkpoints[0][name])
    assert short.result.checkpoints[-1]["bn1.running_var"].min() > 0


def test_a_lone_cluster_sends_nothing_so_its_wire_changes_nothing():
    short = trained(parts=(2,), averaging={"wire": "int8"})
    assert short.result.losses == usual((2,)).result.losses
    assert anchors(short) == anchors(usual((2,)))


def test_a_lone_cluster_with_an_outer_optimizer_takes_its_own_steps():
    run = trained(parts=(2,), averaging={"outer": NESTEROV})
    assert run.result.losses != usual((2,)).result.losses
    assert held_out_loss(run) < 2.2


def test_buffers_are_averaged_and_never_moved_by_the_outer_optimizer():
    """With a rate near nothing the anchor stands still, and batch-norm learns all the same."""
    averaging = {"outer": {"nesterov": {"lr": 1e-9, "momentum": 0.0}}}
    run = trained(**CNN, averaging=averaging, optimizer={"name": "sgd", "lr": 0.05})
    first, last = run.result.checkpoints[0], run.result.checkpoints[-1]
    assert torch.allclose(first["conv1.weight"], last["conv1.weight"], atol=1e-6)
    assert last["bn1.num_batches_tracked"] > 0
    assert not torch.allclose(last["bn1.running_mean"], torch.zeros_like(last["bn1.running_mean"]), atol=1e-3)
    assert last["bn1.running_var"].min() > 0


def test_a_resumed_run_goes_on_with_its_momentum():
    """Synchronous, one cluster, a round for each update: a run that was cut in two is like a whole one."""
    job = tiny_job(
        max_staleness=0,
        average_every=12,
        optimizer={"name": "sgd", "lr": 0.05},
        averaging={"outer": {"nesterov": {"lr": 0.7, "momentum": 0.8}}},
    )
    longer = job.model_copy(update={"stop": StopConfig(samples=480)})
    whole, first = local_run(longer, parts=(2,)), local_run(job, parts=(2,))
    whole.run()
    anchor = first.run().checkpoints[-1]
    state = {name: saved(stage.rounds)[1] for name, stage in first.stages.items()}
    assert all({key for _, key in found} == {"outer_momentum"} for found in state.values())
    done = len(first.result.losses["c0"])
    apart = {}
    for name, kept in (("with", state), ("without", {stage: {} for stage in state})):
        start = Start(anchor, kept, first.control.updates, first.control.samples)
        second = local_run(longer, parts=(2,), start=start)
        for stage, runtime in second.stages.items():
            loaded = saved(runtime.rounds)[1]
            assert loaded.keys() == kept[stage].keys()
            assert all(torch.equal(loaded[key], kept[stage][key]) for key in loaded)
        losses = second.run().losses["c0"]
        expected = whole.result.losses["c0"][done : done + 30]
        apart[name] = max(abs(a - b) for a, b in zip(losses, expected, strict=False))
    # Not the same to the last bit: the end of the first run merged its last round an update earlier.
    assert apart["with"] < 0.3 * apart["without"]


SPECTRAL = {"model": {"factory": "tiny:spectral"}, "data": {"factory": "tiny:images"}}
VECTORS = [f"{layer}.parametrizations.weight.0.{name}" for layer in (2, 3) for name in ("_u", "_v")]


def spectral(**averaging):
    optimizer = {"name": "sgd", "lr": 0.3}
    return trained((1, 2), **SPECTRAL, optimizer=optimizer, average_every=96, averaging=averaging)


def test_vectors_of_a_spectral_norm_keep_their_length_and_are_the_same_everywhere():
    run = spectral()
    assert run.control.rounds_committed >= 4
    for name in VECTORS:
        assert [float(saved[name].norm()) for saved in run.result.checkpoints] == pytest.approx(
            [1.0] * len(run.result.checkpoints), abs=1e-6
        )
        assert len(held_by(run, name)) == 1


def test_a_job_may_average_such_buffers_or_leave_them_local():
    averaged = spectral(buffers={"*._u": "average", "*._v": "average"}).result.checkpoints[-1]
    assert min(float(averaged[name].norm()) for name in VECTORS) < 1 - 1e-4
    local = spectral(buffers={"*._[uv]": "local"})
    assert all(len(held_by(local, name)) == 2 for name in VECTORS)
    assert all(float(local.result.checkpoints[-1][name].norm()) == pytest.approx(1.0) for name in VECTORS)


def held_by(run, name):
    """The different values of a buffer that the stages hold."""
    buffers = [dict(stage.compute.module.named_buffers()) for stage in run.stages.values()]
    return {held[name].numpy().tobytes() for held in buffers if name in held}
