"""Where things are kept follows the environment, and an empty name keeps nothing."""

from pathlib import Path

import pytest

from ravnest.user_cache import FOLDER_VARIABLE, kept_folder


def test_the_environment_names_the_folder(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv(FOLDER_VARIABLE, str(tmp_path))
    assert kept_folder("checks") == tmp_path / "checks"
    monkeypatch.setenv(FOLDER_VARIABLE, "")
    assert kept_folder("checks") is None
    monkeypatch.delenv(FOLDER_VARIABLE)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "caches"))
    assert kept_folder("streams") == tmp_path / "caches" / "ravnest" / "streams"
    monkeypatch.delenv("XDG_CACHE_HOME")
    monkeypatch.setenv("HOME", str(tmp_path))
    assert kept_folder("streams") == tmp_path / ".cache" / "ravnest" / "streams"
