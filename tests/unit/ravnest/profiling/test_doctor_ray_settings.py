from pathlib import Path

import pytest

from ravnest.profiling.doctor import join_finding, settings_findings


@pytest.fixture
def token(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    path = tmp_path / "auth_token"
    monkeypatch.setenv("RAY_AUTH_TOKEN_PATH", str(path))
    monkeypatch.delenv("RAY_AUTH_TOKEN", raising=False)
    monkeypatch.delenv("RAY_AUTH_MODE", raising=False)
    return path


def test_who_joins_needs_a_token(token: Path) -> None:
    assert settings_findings(joins=False) == []
    (found,) = settings_findings(joins=True)
    assert (found.level, str(token) in found.message) == ("fails", True)


def test_a_token_that_others_read_warns_and_a_private_one_is_fine(token: Path) -> None:
    token.write_text("secret")
    token.chmod(0o644)
    (found,) = settings_findings(joins=True)
    assert found.level == "warns"
    assert "secret" not in f"{found.message} {found.advice}"
    token.chmod(0o600)
    assert settings_findings(joins=True) == []


def test_another_mode_of_authentication_fails(token: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RAY_AUTH_MODE", "disabled")
    assert [found.level for found in settings_findings(joins=False)] == ["fails"]
    assert not token.exists()


def test_a_refused_token_is_told_apart_from_a_silent_head() -> None:
    assert "auth_token" in join_finding("could not join: invalid authentication token").advice
    assert "ports" in join_finding("reaches no Ray cluster at 192.0.2.1:6379 (timed out)").advice
