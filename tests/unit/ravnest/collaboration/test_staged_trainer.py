from pathlib import Path

import pytest
from torch import Tensor

from ravnest.collaboration import lent_machines
from ravnest.collaboration.code_bundle import code_hash, collected, written
from ravnest.collaboration.lent_machines import LentMachines
from ravnest.collaboration.lent_stage import LentStage
from ravnest.collaboration.staged_trainer import StagedTrainer
from ravnest.collaboration.trainer import GRADIENTS, STATISTICS, NotFinite, Trainer
from ravnest.errors import RunFailed
from ravnest.job.config import load_job
from ring_allreduce.transport import LineClosed, LineEvent, LineOpened
from tests.unit.ravnest.collaboration.jobs import job_in
from tests.unit.ravnest.collaboration.lent_twin import LentNetwork

TIED = """

class Tied(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first = torch.nn.Linear(6, 6)
        self.norm = torch.nn.BatchNorm1d(6)
        self.frozen = torch.nn.Linear(6, 6)
        self.frozen.weight.requires_grad_(False)
        self.last = torch.nn.Linear(6, 6)
        self.last.weight = self.first.weight
        self.register_buffer("unread", torch.tensor([0.5]))
        self.register_buffer("twice", torch.full((1,), 2.0, dtype=torch.float64))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = torch.tanh(self.norm(self.first(x)))
        x = torch.tanh(self.frozen(x)) * self.twice.float()
        return self.last(x)[:, :2]


def tied() -> torch.nn.Module:
    return Tied()
"""


class World:
    """A trainer of one machine, and one of several that has the same state."""

    def __init__(
        self, folder: Path, monkeypatch: pytest.MonkeyPatch, stages: int, *, tied: bool = False, **job: object
    ) -> None:
        self.job_file = job_in(folder / "job", **job)  # type: ignore[arg-type]
        if tied:
            code = next(self.job_file.parent.glob("*.py"))
            code.write_text(code.read_text() + TIED)
            self.job_file.write_text(self.job_file.read_text().replace(":model}", ":tied}"))
        self.net = LentNetwork()
        monkeypatch.setattr(lent_machines, "Lines", self.net)
        files = collected(self.job_file)
        self.home = folder / "home"
        self.job_file = written(files, self.home) / self.job_file.name  # where machines of this process write it, too
        self.said: list[str] = []
        self.stopped = False
        self.machines = LentMachines(
            stages,
            code_hash(files),
            listen="127.0.0.1:0",
            now=self.net.now,
            tell=self.said.append,
            stop=lambda: self.stopped,
        )
        self.lines = [self.net.lend(self.machines.given, self.home) for _ in range(stages)]
        given = load_job(self.job_file)
        self.alone = Trainer(given, self.job_file, order="ada")
        self.staged = StagedTrainer(given, self.job_file, self.machines, files, order="ada")
        self.staged.ready()
        self.load()

    def load(self) -> None:
        vectors: dict[str, Tensor] = {form.name: vector for form, vector in self.alone.state()}
        self.staged.load(vectors, self.alone.step)

    def gives(self, numbers: range) -> tuple[list[Tensor], list[Tensor]]:
        """The contributions of both over these micro-batches, whose losses are the same."""
        for number in numbers:
            one, other = self.alone.compute(number), self.staged.compute(number)
            assert other.loss == pytest.approx(one.loss, rel=1e-5)
            self.alone.count(one.samples)
            self.staged.count(other.samples)
        return self.alone.contribution(), self.staged.contribution()

    def stage(self, place: int) -> LentStage:
        """What holds that stage."""
        stage = self.net.visits[self.lines[place]][0].stage
        assert stage is not None
        return stage

    def steps(self, contribution: list[Tensor], samples: int) -> None:
        mean = {GRADIENTS: contribution[0] / samples, STATISTICS: contribution[1] / samples}
        assert self.staged.apply(mean) == self.alone.apply(mean)


def close(one: Tensor, other: Tensor) -> bool:
    return one.shape == other.shape and float((one - other).abs().max() if len(one) else 0) <= 1e-5 * (
        float(one.abs().max()) if len(one) else 1
    )


@pytest.mark.parametrize("stages", [1, 2])
def test_stages_give_the_sums_and_make_the_steps_of_one_machine(
    stages: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    world = World(tmp_path, monkeypatch, stages)
    for step in range(3):
        one, other = world.gives(range(4 * step, 4 * step + 4))
        assert close(one[0], other[0])
        world.steps(one, 32)
        assert world.staged.weights_hash() == world.alone.weights_hash()  # bit by bit: they applied the same mean


def test_tied_parameters_running_statistics_and_frozen_weights_are_those_of_one_machine(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    world = World(tmp_path, monkeypatch, 3, tied=True, optimizer="{name: lamb, lr: 1.0e-2, clip_norm: 0.1}")
    for step in range(2):
        # One micro-batch a step: those that are under way beyond it have changed running statistics already.
        one, other = world.gives(range(step, step + 1))
        assert close(one[0], other[0])
        assert len(one[1]) == len(other[1]) > 0
        world.steps(one, 8)
    assert world.staged.weights_hash() == world.alone.weights_hash()


def test_forms_are_those_of_the_whole_model_though_this_machine_holds_none_of_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    world = World(tmp_path, monkeypatch, 2)
    assert world.staged.state_forms(1) == world.alone.state_forms(1)
    assert world.staged.packing.sent == world.alone.packing.sent
    assert all(one.is_meta for one in world.staged.model.parameters())


def test_who_takes_the_state_in_the_middle_goes_on_with_the_optimizer_as_it_is(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    world = World(tmp_path, monkeypatch, 2)
    for step in range(2):
        world.steps(world.gives(range(step, step + 1))[0], 8)
    world.load()
    world.steps(world.gives(range(2, 3))[0], 8)
    assert world.staged.weights_hash() == world.alone.weights_hash()


def test_what_is_forgotten_is_in_no_sum(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    world = World(tmp_path, monkeypatch, 2)
    for trainer in (world.alone, world.staged):
        trainer.count(trainer.compute(0).samples)
        trainer.forget()
        trainer.compute(1)  # and is not counted
    one, other = world.gives(range(2, 4))
    assert close(one[0], other[0])


def test_what_is_under_way_counts_after_a_sum_was_forgotten(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    world = World(tmp_path, monkeypatch, 2)
    for trainer in (world.alone, world.staged):
        made = trainer.compute(0)
        trainer.forget()  # where steps are delayed an average comes meanwhile, and leaves the weights as they are
        trainer.count(made.samples)
    assert close(world.alone.contribution()[0], world.staged.contribution()[0])


def test_a_micro_batch_that_is_not_finite_counts_as_not_made(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    world = World(tmp_path, monkeypatch, 2)
    broken = {form.name: vector for form, vector in world.alone.state()}
    broken["weights.2.weight"][0] = float("nan")
    world.staged.load(broken, 0)
    with pytest.raises(NotFinite):
        world.staged.compute(0)
    world.net.take(0.0)
    assert world.stage(0).under_way == 0, "no backward of it comes"
    world.load()
    one, other = world.gives(range(1, 2))
    assert close(one[0], other[0])


def test_a_lost_machine_ends_the_visit_and_the_next_one_takes_its_place(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    world = World(tmp_path, monkeypatch, 2)
    world.staged.count(world.staged.compute(0).samples)
    world.net.loses(world.lines[1])
    with pytest.raises(RunFailed, match=r"was lost|held by no machine"):
        world.gives(range(1, 4))  # the next ones may have been through before it was lost
    with pytest.raises(RunFailed, match="1 machines did not come"):
        world.staged.ready()
    world.net.lend(world.machines.given, world.home)
    world.staged.ready()
    world.alone.forget()
    world.load()
    one, other = world.gives(range(1, 3))
    assert close(one[0], other[0])


def goes_on(world: World, numbers: range) -> None:
    """After a loss: the visit is another one, and takes the state anew."""
    world.staged.ready()
    world.alone.forget()
    world.load()
    one, other = world.gives(numbers)
    assert close(one[0], other[0])


def test_what_was_asked_for_before_a_machine_was_lost_is_in_no_later_sum(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    world = World(tmp_path, monkeypatch, 2)
    world.staged.count(world.staged.compute(0).samples)
    world.net.frozen.add(world.lines[0])  # its answers come when the other one is lost already
    world.net.loses(world.lines[1])
    with pytest.raises(RunFailed, match="was lost"):
        world.staged.contribution()
    world.net.frozen.clear()
    world.net.lend(world.machines.given, world.home)
    world.staged.ready()
    world.alone.forget()
    world.load()
    for trainer in (world.alone, world.staged):
        trainer.count(trainer.compute(1).samples)
    take = world.net.take

    def late(timeout_s: float) -> list[LineEvent]:
        events = take(timeout_s)
        world.net.frozen.clear()
        return events

    world.net.frozen.add(world.lines[0])
    monkeypatch.setattr(world.net, "take", late)
    assert close(world.alone.contribution()[0], world.staged.contribution()[0])


def test_machines_that_are_lost_together_are_both_known_to_be_lost(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    world = World(tmp_path, monkeypatch, 2)
    world.staged.compute(0)
    turn = world.machines.begin(*world.alone.batch(2))
    world.net.loses(world.lines[1])
    for _ in range(4):
        world.net.visits[world.lines[0]][0].turn()  # its outputs are for the one that is lost
    world.net.loses(world.lines[0])
    with pytest.raises(RunFailed, match="held by no machine"):
        world.machines.finished(turn)
    for _ in range(2):
        world.net.lend(world.machines.given, world.home)
    goes_on(world, range(1, 3))


def test_machines_of_which_none_says_anything_are_let_go_though_others_come_and_go(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    world = World(tmp_path, monkeypatch, 2)
    take = world.net.take

    def restless(timeout_s: float) -> list[LineEvent]:
        assert world.net.now_s < 1000, "it waits without a deadline"
        return [*take(timeout_s), LineOpened(99, "guest"), LineClosed(99, "it has left")]

    monkeypatch.setattr(world.net, "take", restless)
    world.net.frozen.add(world.lines[1])
    with pytest.raises(RunFailed, match="said anything"):
        world.staged.compute(0)
    assert not world.net.visits
    monkeypatch.setattr(world.net, "take", take)
    for _ in range(2):  # the one that was not frozen comes back by itself
        world.net.lend(world.machines.given, world.home)
    goes_on(world, range(1, 3))


def test_who_does_not_make_its_stage_is_replaced(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    world = World(tmp_path, monkeypatch, 2)
    world.net.loses(world.lines[1])
    world.net.frozen.add(world.net.lend(world.machines.given, world.home))
    with pytest.raises(RunFailed, match=r"was lost|held by no machine"):
        world.staged.compute(0)
    with pytest.raises(RunFailed, match="1 machines did not come"):
        world.staged.ready()
    world.net.lend(world.machines.given, world.home)
    goes_on(world, range(1, 3))


def test_stopping_waits_for_no_stage(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    world = World(tmp_path, monkeypatch, 2)
    world.net.frozen.add(world.lines[1])
    world.stopped = True
    with pytest.raises(RunFailed, match="stopped"):
        world.staged.compute(0)
    assert world.net.now_s < 60
