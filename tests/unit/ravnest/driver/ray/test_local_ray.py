"""Ray's token and the ports it may listen on. Its folder and its processes: tests/integration/test_local_ray.py."""

import os
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest

from ravnest.driver.ray import local_ray
from ravnest.errors import RunFailed


def mode(path: Path) -> int:
    return path.stat().st_mode & 0o777


def token(home: Path) -> Path:
    return home / ".ray" / "auth_token"


def test_a_new_token_is_its_owners_alone_whatever_the_umask(tmp_path: Path) -> None:
    before = os.umask(0)
    try:
        local_ray.keep_token(tmp_path, {}, create=True)
    finally:
        os.umask(before)
    assert (mode(token(tmp_path)), mode(token(tmp_path).parent)) == (0o600, 0o700)
    assert len(token(tmp_path).read_text()) == 64
    assert list(token(tmp_path).parent.iterdir()) == [token(tmp_path)]


def test_the_token_is_never_open_to_others_while_it_is_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    modes = []
    link = os.link

    def seen(source: str, target: Path) -> None:
        modes.append(mode(Path(source)))
        link(source, target)

    monkeypatch.setattr(os, "link", seen)
    local_ray.keep_token(tmp_path, {}, create=True)
    assert modes == [0o600]


def test_a_token_that_is_there_stays_and_is_closed_to_others(tmp_path: Path) -> None:
    token(tmp_path).parent.mkdir()
    token(tmp_path).write_text("kept")
    token(tmp_path).chmod(0o644)
    local_ray.keep_token(tmp_path, {}, create=False)
    assert (token(tmp_path).read_text(), mode(token(tmp_path))) == ("kept", 0o600)


def test_a_token_that_another_ray_makes_at_the_same_time_counts(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def quicker(source: str, target: Path) -> None:
        target.write_text("the other's")
        raise FileExistsError

    monkeypatch.setattr(os, "link", quicker)
    local_ray.keep_token(tmp_path, {}, create=True)
    assert token(tmp_path).read_text() == "the other's"


@pytest.mark.parametrize("given", ["RAY_AUTH_TOKEN", "RAY_AUTH_TOKEN_PATH"])
def test_a_token_from_elsewhere_is_left_to_the_user(tmp_path: Path, given: str) -> None:
    local_ray.keep_token(tmp_path, {given: "x"}, create=True)
    assert not token(tmp_path).exists()


def test_a_home_that_cannot_be_written_is_named(tmp_path: Path) -> None:
    (tmp_path / ".ray").write_text("a file")
    with pytest.raises(RunFailed, match=r"could not write Ray's token to .*auth_token: "):
        local_ray.keep_token(tmp_path, {}, create=True)


@pytest.mark.parametrize("host", ["127.0.0.1", "127.4.5.6", "::1", "::ffff:127.0.0.1"])
def test_loopback_is_allowed(host: str) -> None:
    local_ray.require_loopback({("raylet", host, 6379)})


@pytest.mark.parametrize("host", ["::", "0.0.0.0", "192.0.2.2", "::ffff:192.0.2.2", "fe80::1%eth0"])
def test_every_other_address_is_refused_by_name(host: str) -> None:
    with pytest.raises(RunFailed, match=f"raylet on {host}:6379"):
        local_ray.require_loopback({("raylet", host, 6379), ("gcs", "127.0.0.1", 1)})


def test_the_switch_for_one_machine_is_put_back(monkeypatch: pytest.MonkeyPatch) -> None:
    constants = SimpleNamespace(ENABLE_RAY_CLUSTER=True)
    monkeypatch.setitem(sys.modules, "ray._private", SimpleNamespace(ray_constants=constants))
    monkeypatch.setenv("RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER", "1")
    with local_ray.on_loopback():
        assert (os.environ["RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER"], constants.ENABLE_RAY_CLUSTER) == ("0", False)
    assert (os.environ["RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER"], constants.ENABLE_RAY_CLUSTER) == ("1", True)


@pytest.mark.parametrize(
    ("command", "expected"),
    [
        (["ray::StageActor.run", "", ""], True),
        (["ray::StageActor"], True),
        (["ray::IDLE", ""], True),
        (["ray::DashboardAgent", ""], False),
        (["ray::RuntimeEnvAgent"], False),
        (["/usr/lib/ray/raylet", "--node=ray::IDLE"], False),
        ([], False),
    ],
)
def test_a_pause_is_for_stages_and_not_for_what_ray_itself_needs(command: list[str], expected: bool) -> None:
    assert local_ray.is_worker(command) is expected
