import threading
from pathlib import Path
from typing import Any

import pytest
import torch

from ravnest.collaboration.packing import Feedback
from ravnest.collaboration.step_sum import StepSum
from ravnest.collaboration.trainer import GRADIENTS, NotRead, Trainer
from ravnest.errors import InvalidInput
from ravnest.job.config import load_job
from ravnest.training.batches import SampleSet
from ring_allreduce.ring import Wire
from tests.unit.ravnest.collaboration.jobs import job_in


def trainer(folder: Path, order: str = "", **others: str) -> Trainer:
    path = job_in(folder, **others)  # type: ignore[arg-type]
    return Trainer(load_job(path), path, order=order)


def averaged(peers: list[Trainer], total: StepSum) -> dict[str, torch.Tensor]:
    """One step over what travels: each peer makes 2, 3, … micro-batches."""
    step = peers[0].step
    for number, peer in enumerate(peers):
        samples = 0
        for one in range(2 + number):
            made = peer.compute(10 * step + one)
            peer.count(made.samples)
            samples += made.samples
        said = list(Feedback(peer.packing).pieces("contribution", step, samples, peer.contribution(), float(samples)))
        came = peer.packing.incoming(said[0][0])  # type: ignore[arg-type]
        for message, tensors in said[1:]:
            (came.take_piece(message, tensors) if tensors else came.take_tensor(message))  # type: ignore[arg-type]
        total.add(peer.packing.whole(came.vectors, samples), samples)
    return total.finish(step)[1]


@pytest.mark.parametrize("optimizer", ["{name: adamw, lr: 1.0e-2}", "{name: sgd, lr: 0.1, momentum: 0.9}"])
def test_a_fixed_membership_is_large_batch_training_step_by_step(tmp_path: Path, optimizer: str) -> None:
    """Within 1e-5 of one plain PyTorch loop over the same samples as one batch."""
    peers = [trainer(tmp_path, order, optimizer=optimizer) for order in "abc"]
    total = StepSum(peers[0].packing)
    plain = trainer(tmp_path, "plain", optimizer=optimizer)
    parameters = list(plain.model.parameters())
    kind = torch.optim.AdamW if "adamw" in optimizer else torch.optim.SGD
    options = {"lr": 1e-2} if "adamw" in optimizer else {"lr": 0.1, "momentum": 0.9}
    reference = kind(parameters, **options)  # type: ignore[arg-type]
    for step in range(20):
        inputs, targets = [], []
        for number, peer in enumerate(peers):
            for one in range(2 + number):
                (rows,), wanted = peer.batch(10 * step + one)
                inputs.append(rows)
                targets.append(wanted)
        reference.zero_grad()
        torch.nn.functional.cross_entropy(plain.model(torch.cat(inputs)), torch.cat(targets)).backward()  # type: ignore[no-untyped-call]
        reference.step()
        mean = averaged(peers, total)
        for peer in peers:
            peer.apply(mean)
        for mine, theirs in zip(peers[0].model.parameters(), parameters, strict=True):
            torch.testing.assert_close(mine, theirs, rtol=0, atol=1e-5)
        assert len({peer.weights_hash() for peer in peers}) == 1


@pytest.mark.parametrize(
    ("wire", "within"), [("exact", 1e-6), ("float16", 1e-3), ("int8", 2e-2), ("int4", 0.2), ("sparse", 0.99)]
)
def test_shorter_forms_give_everyone_the_same_bytes_near_the_exact_ones(
    tmp_path: Path, wire: Wire, within: float
) -> None:
    names = {"exact": "float32"}
    peers = [trainer(tmp_path / wire, order, wire=names.get(wire, wire)) for order in "ab"]
    exact = [trainer(tmp_path / "float32", order) for order in "ab"]
    mean = averaged(peers, StepSum(peers[0].packing))[GRADIENTS]
    wanted = averaged(exact, StepSum(exact[0].packing))[GRADIENTS]
    assert float((mean - wanted).norm()) <= within * float(wanted.norm())


@pytest.mark.parametrize("optimizer", ["{name: adamw, lr: 1.0e-2}", "{name: sgd, lr: 0.1}", "{name: lamb, lr: 0.01}"])
def test_a_joiner_that_takes_the_state_goes_on_as_the_others_do(tmp_path: Path, optimizer: str) -> None:
    first, joiner = (trainer(tmp_path, order, optimizer=optimizer) for order in "ab")
    total = StepSum(first.packing)
    for _ in range(3):
        first.apply(averaged([first], total))
    state = first.state()
    forms = joiner.state_forms(first.step)
    assert [form.name for form, _ in state] == [form.name for form in forms]
    joiner.load({form.name: vector for form, vector in state}, first.step)
    assert joiner.weights_hash() == first.weights_hash()
    mean = averaged([first], total)
    first.apply(mean)
    joiner.apply(mean)
    assert joiner.weights_hash() == first.weights_hash()


def test_peers_read_samples_in_orders_of_their_own(tmp_path: Path) -> None:
    one, other = (trainer(tmp_path, order) for order in "ab")
    assert not torch.equal(one.batch(0)[0][0], other.batch(0)[0][0])
    assert torch.equal(one.batch(0)[0][0], trainer(tmp_path, "a").batch(0)[0][0])


def test_it_evaluates_on_the_held_out_set(tmp_path: Path) -> None:
    found = trainer(tmp_path).evaluate()
    assert set(found) == {"loss", "accuracy"}
    assert 0 <= found["accuracy"] <= 1


def test_a_planned_job_is_refused(tmp_path: Path) -> None:
    path = job_in(tmp_path)
    path.write_text(path.read_text().replace("mode: collaborative\ntarget_batch: 64\n", ""))
    with pytest.raises(InvalidInput, match="collaborative"):
        Trainer(load_job(path), path)


def test_a_held_out_set_that_is_read_for_ever_holds_no_spot_check_up(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("ravnest.collaboration.trainer.READ_S", 0.01)
    backbone = trainer(tmp_path)
    begun, goes_on, read = threading.Event(), threading.Event(), SampleSet.batch

    def hangs(self: SampleSet, *span: Any) -> Any:
        if self is backbone.data.held_out:
            begun.set()
            goes_on.wait()
        return read(self, *span)

    monkeypatch.setattr(SampleSet, "batch", hangs)
    evaluates = threading.Thread(target=backbone.evaluation(), args=(lambda: False,), daemon=True)
    evaluates.start()
    begun.wait()
    with pytest.raises(NotRead):
        backbone.again("o", 0)
    goes_on.set()
    evaluates.join()
    assert backbone.again("o", 0).numel() == backbone.packing.summed[0].elements
