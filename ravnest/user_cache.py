"""Where this user's ravnest keeps what it could make again: checks of jobs, bookmarks in streams of data."""

import os
from pathlib import Path

FOLDER_VARIABLE = "RAVNEST_CACHE"
"""The variable of the environment that names another folder; empty: nothing is kept."""


def kept_folder(name: str) -> Path | None:
    """The folder of that name among what is kept; None where the environment says that nothing is to be kept."""
    chosen = os.environ.get(FOLDER_VARIABLE)
    if chosen == "":
        return None
    base = Path(chosen) if chosen else Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "ravnest"
    return base / name
