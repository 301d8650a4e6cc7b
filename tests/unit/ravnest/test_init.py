import ast
import subprocess
import sys
from pathlib import Path

import pytest

import ravnest


def test_every_name_of_the_door_is_there_and_typed() -> None:
    tree = ast.parse(Path(str(ravnest.__file__)).read_text(encoding="utf-8"))
    (typed,) = [node for node in tree.body if isinstance(node, ast.If)]
    names = {alias.name for node in typed.body if isinstance(node, ast.ImportFrom) for alias in node.names}
    assert names == set(ravnest.__all__)
    assert all(getattr(ravnest, name) is not None for name in ravnest.__all__)
    assert set(ravnest.__all__) <= set(dir(ravnest))


def test_every_name_of_the_door_is_documented() -> None:
    assert [name for name in ravnest.__all__ if not getattr(ravnest, name).__doc__ and name != "RunEvent"] == []


def test_an_unknown_name_is_an_attribute_error() -> None:
    with pytest.raises(AttributeError, match="has no attribute 'trian'"):
        _ = ravnest.trian  # type: ignore[attr-defined]


def test_importing_the_door_loads_nothing_heavy() -> None:
    code = "import sys, ravnest; print(sorted({'torch', 'ray', 'pydantic', 'networkx', 'yaml'} & set(sys.modules)))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"
