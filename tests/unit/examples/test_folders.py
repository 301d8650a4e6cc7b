"""Each example folder is whole: it can be copied, read and planned from."""

from pathlib import Path

import pytest

from cluster_planner import load_fleet
from ravnest.job.config import load_job

EXAMPLES = Path(__file__).parents[3] / "examples"
FOLDERS = sorted(path.parent for path in EXAMPLES.glob("*/nodes.yaml"))


def test_there_are_three() -> None:
    assert [folder.name for folder in FOLDERS] == ["digits", "home", "llama"]


@pytest.mark.parametrize("folder", FOLDERS, ids=lambda folder: folder.name)
def test_its_files_are_valid_and_name_what_lies_in_it(folder: Path) -> None:
    assert len(load_fleet(folder / "nodes.yaml").nodes) >= 3
    job = load_job(folder / "job.yaml")
    assert (folder / "README.md").is_file()
    module = job.data.factory.partition(":")[0]
    assert (folder / f"{module}.py").is_file()
