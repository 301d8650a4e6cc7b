from dataclasses import replace
from pathlib import Path

import pytest
import torch
from torch import nn

from ravnest.errors import InvalidInput
from ravnest.experts import ExpertsClient, RemoteMixtureOfExperts
from ravnest.experts.askers import close_grids, open_grid, opened_grids
from ravnest.experts.batch_calls import Asker
from ravnest.job.config import Job, job_from_mapping
from ravnest.job.experts_table import (
    ExpertsTableConfig,
    check_experts,
    experts_open,
    experts_stand_in,
    open_experts,
    own_address,
)
from ravnest.splitting import StageProgram, capture
from tests.support.experts import WIDTH, LocalClient, small_grid
from tests.support.local import tiny_job


@pytest.fixture(scope="module")
def asking() -> StageProgram:
    model = nn.Sequential(nn.Linear(WIDTH, WIDTH), RemoteMixtureOfExperts(small_grid(), k=2))
    captured = capture(model, (torch.randn(3, WIDTH),))
    return captured.span(0, len(captured.units))


def test_the_section_is_read_and_goes_into_the_plans_mapping() -> None:
    job = tiny_job(experts={"peers": ["192.0.2.1:7700"], "token_file": "token"})
    again = job_from_mapping(job.model_dump(mode="json"))
    assert again.experts == ExpertsTableConfig(peers=("192.0.2.1:7700",), token_file="token")
    assert tiny_job().experts is None


@pytest.mark.parametrize(
    ("section", "key"),
    [({"peers": []}, "experts.peers"), ({"peers": ["h:1"], "wait_s": 900}, "experts.wait_s"), ({}, "experts.peers")],
)
def test_mistakes_name_their_key(section: dict[str, object], key: str) -> None:
    mapping = {**tiny_job().model_dump(mode="json"), "experts": section}
    with pytest.raises(InvalidInput, match=key):
        job_from_mapping(mapping)


def test_a_model_that_asks_experts_needs_the_section(asking: StageProgram) -> None:
    words = check_experts(ExpertsTableConfig(peers=("h:1",)), asking, "job.yaml")
    assert words is not None
    assert "counts no time for their answers" in words
    assert check_experts(None, replace(asking, imports=()), "job.yaml") is None
    for check in (lambda: check_experts(None, asking, "job.yaml"), lambda: open_experts(None, [asking], "job.yaml")):
        with pytest.raises(InvalidInput) as caught:
            check()
        assert (caught.value.path, caught.value.key) == ("job.yaml", "experts")


def test_a_token_file_that_is_missing_is_not_made(asking: StageProgram, tmp_path: Path) -> None:
    table = ExpertsTableConfig(peers=("127.0.0.1:9",), token_file="token")
    with pytest.raises(InvalidInput, match="copy the experts' token to this machine") as caught:
        open_experts(table, [asking], tmp_path / "job.yaml")
    assert (caught.value.path, caught.value.key) == (str(tmp_path / "job.yaml"), "experts.token_file")
    assert not (tmp_path / "token").exists()


def test_a_grid_that_is_open_is_not_opened_again(asking: StageProgram) -> None:
    open_grid("test", Asker(LocalClient(small_grid())))
    try:
        open_experts(ExpertsTableConfig(peers=("127.0.0.1:9",)), [asking], "job.yaml")  # nobody is there
    finally:
        close_grids()


def test_two_layers_that_mean_different_experts_by_one_name_are_refused(asking: StageProgram) -> None:
    open_grid("test", Asker(LocalClient(small_grid(input_shape=[WIDTH], grid=[3, 3]))))
    try:
        with pytest.raises(InvalidInput, match="describe the experts of 'test' differently") as caught:
            open_experts(ExpertsTableConfig(peers=("127.0.0.1:9",)), [asking], "job.yaml")
        assert caught.value.key == "model"
    finally:
        close_grids()


def test_stand_ins_are_those_of_jobs_with_experts() -> None:
    layer = RemoteMixtureOfExperts(small_grid(), k=2)
    with experts_stand_in(ExpertsTableConfig(peers=("h:1",))):
        assert layer(torch.randn(2, WIDTH)).shape == (2, WIDTH)
    with experts_stand_in(None), pytest.raises(InvalidInput, match="nobody in this process"):
        layer(torch.randn(2, WIDTH))


def test_a_whole_model_asks_the_experts_of_its_layers_as_a_sample_does(monkeypatch: pytest.MonkeyPatch) -> None:
    client = LocalClient(small_grid())
    monkeypatch.setattr(client, "wait_for_experts", lambda count, seconds: None, raising=False)
    monkeypatch.setattr(ExpertsClient, "opened", lambda *_, **__: client)
    table, model = ExpertsTableConfig(peers=("127.0.0.1:9",)), RemoteMixtureOfExperts(small_grid(), k=2)
    with experts_open(table, model, "job.yaml"):
        assert model(torch.randn(2, WIDTH)).shape == (2, WIDTH)
    assert not opened_grids()
    with experts_open(None, model, "job.yaml"), pytest.raises(InvalidInput, match="nobody in this process"):
        model(torch.randn(2, WIDTH))


def test_gradients_that_are_scaled_reach_no_expert() -> None:
    with pytest.raises(InvalidInput, match="precision: float16 multiplies gradients"):
        tiny_job(experts={"peers": ["h:1"]}, precision="float16")


def test_the_own_address_is_that_on_the_way_to_a_peer_that_can_be_reached() -> None:
    assert own_address(["127.0.0.1:9"]) == "127.0.0.1"
    assert own_address(["127.0.0.1:x", "127.0.0.1:9"]) == "127.0.0.1"
    for wrong in ("127.0.0.1", "127.0.0.1:x"):
        with pytest.raises(InvalidInput, match="expected HOST:PORT"):
            own_address([wrong])


def test_volunteers_have_no_experts() -> None:
    with pytest.raises(InvalidInput, match="experts: has no meaning in mode collaborative"):
        Job(
            model={"factory": "a:b"},
            data={"factory": "a:b"},
            stop={"samples": 8},
            mode="collaborative",
            target_batch=8,
            experts={"peers": ["h:1"]},
        )
