import sys
from collections.abc import Callable
from functools import partial
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
from torch import nn

from ravnest.errors import InvalidInput
from ravnest.job.callables import as_written
from tests.support.jobs import tiny

ROOT = Path(__file__).parents[4]
SCRIPT = "def make(): pass\n\nif __name__ == '__main__':\n    pass\n"


@pytest.fixture
def module(monkeypatch: pytest.MonkeyPatch) -> Callable[..., ModuleType]:
    def module(path: Path | None, text: str = SCRIPT, name: str = "__main__") -> ModuleType:
        made = ModuleType(name)
        if path is not None:
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text)
            made.__file__ = str(path)
        exec(compile(text.partition("if __name__")[0], "module", "exec"), vars(made))
        monkeypatch.setitem(sys.modules, name, made)
        return made

    return module


def refused(**given: Any) -> InvalidInput:
    with pytest.raises(InvalidInput) as raised:
        as_written(given)
    return raised.value


def test_functions_of_a_module_become_references_and_their_package_is_the_place() -> None:
    written, place = as_written({"model": partial(tiny.gpt, layers=2), "data": tiny.words, "micro_batch": 4})
    assert written == {
        "model": {"factory": "tests.support.jobs.tiny:gpt", "args": {"layers": 2}},
        "data": {"factory": "tests.support.jobs.tiny:words", "args": {}},
        "micro_batch": 4,
    }
    assert place == ROOT / "tests"


def test_a_loss_is_the_function_itself_and_a_class_is_a_factory() -> None:
    written, place = as_written({"loss": nn.functional.l1_loss, "metrics": ["accuracy", nn.MSELoss]})
    assert written["loss"] == {"function": "torch.nn.functional:l1_loss", "args": {}}
    assert written["metrics"] == ("accuracy", {"factory": "torch.nn.modules.loss:MSELoss", "args": {}})
    assert place is None  # a library is installed on every node


def test_a_callable_within_a_mapping_becomes_a_reference_too() -> None:
    written, _ = as_written({"model": {"factory": tiny.gpt, "args": {"layers": 2}}, "data": {"factory": "own:data"}})
    assert written["model"] == {"factory": "tests.support.jobs.tiny:gpt", "args": {"layers": 2}}
    assert written["data"] == {"factory": "own:data"}


def test_a_function_of_a_guarded_script_is_one_of_a_module_of_its_name(module: Any, tmp_path: Path) -> None:
    script = module(tmp_path / "train.py")
    script.make.__module__ = "__main__"
    written, place = as_written({"model": script.make})
    assert written["model"] == {"factory": "train:make", "args": {}}
    assert place == tmp_path / "train.py"


def test_a_script_without_a_guard_is_refused_with_what_to_do(module: Any, tmp_path: Path) -> None:
    error = refused(model=module(tmp_path / "train.py", "def make(): pass\n").make)
    assert "train.py, which every stage imports" in str(error)
    assert error.key == "model"
    assert 'if __name__ == "__main__":' in str(error.hint)


def test_a_script_whose_name_is_no_modules_is_refused(module: Any, tmp_path: Path) -> None:
    assert "whose name is no module's" in str(refused(model=module(tmp_path / "train-it.py").make))


def test_a_function_of_a_notebook_cell_is_refused_with_what_to_do(module: Any) -> None:
    error = refused(loss=module(None).make)
    assert str(error).startswith("loss: 'make' is defined in a notebook")
    assert "%%writefile my_job.py" in str(error.hint)


def test_what_has_no_name_to_import_is_refused() -> None:
    def inner() -> None: ...

    assert str(refused(model=lambda: None)) == "model: is a lambda: the stages' processes cannot import it"
    assert "'inner' is defined in a function" in str(refused(model=inner))
    error = refused(loss=nn.MSELoss())
    assert str(error) == "loss: is a MSELoss object, which has no name to import"
    assert "loss={'factory': TheClass, 'args': {...}}" in str(error.hint)
    assert "arguments without names" in str(refused(model=partial(tiny.gpt, 2)))


def test_a_name_that_now_means_something_else_is_refused(module: Any, tmp_path: Path) -> None:
    replaced = module(tmp_path / "own.py", "def make(): pass\n", "own")
    before = replaced.make
    replaced.make = None
    assert str(refused(model=before)) == "model: 'make' of own is now something else"


def test_code_of_two_folders_is_refused_unless_one_works_in_the_second(
    module: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    one = module(tmp_path / "a" / "one.py", "def make(): pass\n", "one").make
    two = module(tmp_path / "b" / "two.py", "def make(): pass\n", "two").make
    error = refused(model=one, data=two)
    assert (error.key, f"from {tmp_path / 'b' / 'two.py'}" in str(error)) == ("data", True)
    monkeypatch.chdir(tmp_path / "b")
    assert as_written({"model": one, "data": two})[1] == tmp_path / "a" / "one.py"
