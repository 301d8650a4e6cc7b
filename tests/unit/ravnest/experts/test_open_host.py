from pathlib import Path
from typing import Any

import pytest

from ravnest.errors import InvalidInput
from ravnest.experts import open_host
from ravnest.experts.config import ExpertsConfig, build_expert
from ravnest.experts.expert import HostedExpert
from ravnest.experts.expert_files import ExpertFiles
from ravnest.experts.open_host import opened_host, require_same_kind, room_for, shared_token
from ring_allreduce import TransportError
from tests.support.experts import WIDTH, small_grid

BLOCK = {"factory": "tests.support.experts:block"}


def test_a_token_is_made_once_and_then_read(tmp_path: Path) -> None:
    path = tmp_path / "token"
    made = shared_token(path, "192.0.2.1", "test")
    assert len(made) == 16
    assert shared_token(path, "192.0.2.1", "test") == made
    assert path.stat().st_mode & 0o777 == 0o600


def test_without_a_file_only_this_machine_takes_part() -> None:
    assert shared_token(None, "127.0.0.1", "a") == shared_token(None, "::1", "a") != shared_token(None, "::1", "b")
    with pytest.raises(InvalidInput) as caught:
        shared_token(None, "192.0.2.1", "a")
    assert caught.value.key == "token_file"


@pytest.mark.parametrize("text", ["", "xyz", "00" * 15])
def test_a_file_that_holds_no_token_is_named(text: str, tmp_path: Path) -> None:
    path = tmp_path / "token"
    path.write_text(text)
    with pytest.raises(InvalidInput) as caught:
        shared_token(path, "127.0.0.1", "a")
    assert caught.value.path == str(path)


def test_as_many_experts_as_half_of_the_memory_holds() -> None:
    config = small_grid(grid=[8, 8], optimizer={"name": "adamw", "lr": 0.1})
    parameters = 4 * (WIDTH * WIDTH + WIDTH)
    each = parameters * (2 * (1 + 2) + 1)  # weights and two moments, once more for a copy, and the gradient
    room = room_for(config, (), None, 2 * 10 * each)
    assert room.experts == 10
    assert room.copies(10) == 10
    assert 10 < room.copies(4) < 20  # what fewer experts leave free, though each copy has no gradient
    assert room.copies(12) == 12
    large = room_for(config, (), None, 10**12)
    assert (large.experts, large.copies(64), large.copies(1)) == (64, 64, 64)
    with pytest.raises(InvalidInput, match="one expert takes"):
        room_for(config, (), None, each)


def test_a_host_has_made_an_update_before_anybody_can_reach_it(monkeypatch: pytest.MonkeyPatch) -> None:
    made: list[HostedExpert] = []

    class Noted(HostedExpert):
        def __init__(self, *args: Any) -> None:
            super().__init__(*args)
            made.append(self)

    class Opens(Exception):
        pass

    def opens(*_: object, **__: object) -> None:
        raise Opens

    monkeypatch.setattr(open_host, "HostedExpert", Noted)
    monkeypatch.setattr(open_host, "members_endpoint", opens)
    with pytest.raises(Opens), opened_host(small_grid(), []):
        pass
    assert [one.updates for one in made] == [1]


def test_an_address_that_the_machine_does_not_have_is_told_with_its_key(monkeypatch: pytest.MonkeyPatch) -> None:
    def fails(*_: object, **__: object) -> None:
        raise TransportError("cannot listen on 192.0.2.7:0: Cannot assign requested address")

    monkeypatch.setattr(open_host, "members_endpoint", fails)
    with pytest.raises(InvalidInput, match=r"192\.0\.2\.7") as caught, opened_host(small_grid(), []):
        pass
    assert caught.value.key == "host"
    assert caught.value.hint


def test_patterns_that_name_no_expert_are_told_with_their_key() -> None:
    with pytest.raises(InvalidInput) as caught, opened_host(small_grid(), [], experts=["7.*"]):
        pass
    assert caught.value.key == "experts"


def test_a_folder_with_another_kind_of_experts_is_named_and_left_as_it_is(tmp_path: Path) -> None:
    def write(config: ExpertsConfig) -> None:
        made = HostedExpert(build_expert(config, (1, 0), ()), config)
        ExpertFiles(tmp_path, config.places).write((1, 0), made.state(), made.kept)

    mine, other = small_grid(), small_grid(input_shape=[WIDTH + 1], expert={**BLOCK, "args": {"width": WIDTH + 1}})
    require_same_kind(mine, tmp_path, (), None)
    write(mine)
    require_same_kind(mine, tmp_path, (), None)
    with pytest.raises(InvalidInput, match="another kind of expert") as caught:
        require_same_kind(other, tmp_path, (), None)
    assert caught.value.path == str(tmp_path / "1.0.safetensors")
    assert ExpertFiles(tmp_path, mine.places).stored()
