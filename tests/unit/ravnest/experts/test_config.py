from pathlib import Path

import pytest
import torch

from ravnest.errors import InvalidInput
from ravnest.experts.config import build_expert, load_experts
from tests.support.experts import small_grid

WHOLE = """
name: digits
grid: [4, 4]
expert: {factory: "model:expert"}
input_shape: [16]
"""


def test_a_file_with_the_keys_that_must_be(tmp_path: Path) -> None:
    path = tmp_path / "experts.yaml"
    path.write_text(WHOLE)
    config = load_experts(path)
    assert (config.out_shape, len(config.places), config.optimizer.name) == ((16,), 16, "adamw")


@pytest.mark.parametrize(
    ("line", "said"),
    [
        ("grid: [0]", "grid"),
        ("grid: []", "grid"),
        ("name: NO", "name"),
        ("input_shape: [100000, 100000]", "numbers"),
        ("optimizer: {name: adamw, schedule: {name: cosine}}", "optimizer.schedule.name"),
        ("optimizer: {name: adamw, groups: [{match: '*', lr: 1}]}", "optimizer.groups"),
        ("batch: {most_sample: 3}", "most_sample"),
        ("max_staleness: -1", "max_staleness"),
    ],
)
def test_what_is_wrong_is_told_with_file_and_key(line: str, said: str, tmp_path: Path) -> None:
    path = tmp_path / "experts.yaml"
    kept = [one for one in WHOLE.splitlines() if one.partition(":")[0] != line.partition(":")[0]]
    path.write_text("\n".join([*kept, line]))
    with pytest.raises(InvalidInput) as caught:
        load_experts(path)
    assert str(path) in str(caught.value)
    assert said in str(caught.value)


def test_large_samples_are_asked_for_in_requests_that_can_travel() -> None:
    assert small_grid().request_samples == 8
    mebibytes = small_grid(input_shape=[1 << 20], batch={"most_samples": 256})  # of 4 MiB each, and as much back
    assert mebibytes.request_samples == 16
    assert small_grid(input_shape=[1 << 24], batch={"most_samples": 256}).request_samples == 1


@pytest.mark.parametrize("factory", ["tests.support.experts:block", "tests.support.experts:numpy_block"])
def test_initial_weights_follow_from_seed_and_coordinates_whoever_makes_them(factory: str) -> None:
    def weights(expert: tuple[int, int], seed: int = 0) -> torch.Tensor:
        return next(build_expert(small_grid(seed=seed, expert={"factory": factory}), expert, ()).parameters())

    before = torch.random.get_rng_state()
    assert torch.equal(weights((0, 1)), weights((0, 1)))
    assert not torch.equal(weights((0, 1)), weights((1, 0)))
    assert not torch.equal(weights((0, 1)), weights((0, 1), seed=1))
    assert torch.equal(torch.random.get_rng_state(), before)


@pytest.mark.parametrize(
    ("factory", "said"),
    [
        ("tests.support.experts:dropping", "draws random numbers"),
        ("tests.support.experts:normed", "changes a buffer"),
        ("tests.support.experts:narrow", "must return float32"),
        ("tests.support.experts:deaf", "does not depend on its input"),
        ("torch.nn:Identity", "without parameters"),
        ("tests.support.experts:small_grid", "must return a torch.nn.Module"),
        ("tests.support.experts:nothing", "has no 'nothing'"),
    ],
)
def test_modules_that_cannot_be_experts_are_refused(factory: str, said: str) -> None:
    config = small_grid(expert={"factory": factory})
    with pytest.raises(InvalidInput, match=said) as caught:
        build_expert(config, (0, 0), (), "experts.yaml")
    assert caught.value.path == "experts.yaml"
    assert caught.value.key == "expert.factory"
