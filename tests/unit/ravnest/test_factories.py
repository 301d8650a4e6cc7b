import itertools
import sys

import pytest

from ravnest.errors import InvalidInput
from ravnest.factories import FactoryConfig, call, resolve

WHOLE = "; RAVNEST_TRACEBACK=1 shows the whole)"
_names = (f"ravnest_test_module_{number}" for number in itertools.count())


@pytest.fixture(autouse=True)
def _own_imports(monkeypatch):
    monkeypatch.setattr(sys, "path", list(sys.path))
    before = set(sys.modules)
    yield
    for name in set(sys.modules) - before:
        del sys.modules[name]


@pytest.fixture
def write(tmp_path):
    def write(text):
        name = next(_names)
        (tmp_path / f"{name}.py").write_text(text)
        return name

    return write


def fault(reference, folder):
    with pytest.raises(InvalidInput) as raised:
        resolve(reference, [folder], path="job.yaml", key="model.factory")
    said = str(raised.value)
    assert said.startswith("job.yaml: model.factory: ")
    assert "\n" not in said
    return said


def test_resolves_a_function_and_a_nested_attribute(write, tmp_path):
    name = write("class A:\n    @staticmethod\n    def make(n):\n        return n + 1\n")
    assert resolve(f"{name}:A.make", [tmp_path])(1) == 2


def test_search_dirs_come_first_and_stay(write, tmp_path):
    name = write("def late():\n    import ravnest_test_late\n    return ravnest_test_late.value\n")
    (tmp_path / "ravnest_test_late.py").write_text("value = 5\n")
    assert resolve(f"{name}:late", [tmp_path])() == 5
    resolve(f"{name}:late", [tmp_path])
    assert sys.path[0] == str(tmp_path)
    assert sys.path.count(str(tmp_path)) == 1


def test_a_module_that_is_not_there(tmp_path):
    assert f"no module 'ravnest_test_absent' in {tmp_path}" in fault("ravnest_test_absent:f", tmp_path)


def test_a_submodule_that_is_not_there(write, tmp_path):
    (tmp_path / "ravnest_test_pkg").mkdir()
    (tmp_path / "ravnest_test_pkg" / "__init__.py").write_text("")
    assert "no module 'ravnest_test_pkg.model'" in fault("ravnest_test_pkg.model:f", tmp_path)


def test_an_import_that_the_module_misses_is_its_own_fault(write, tmp_path):
    name = write("x = 1\nimport ravnest_test_nowhere\n")
    said = fault(f"{name}:f", tmp_path)
    assert f"importing {name!r} raised ModuleNotFoundError: No module named 'ravnest_test_nowhere'" in said
    assert said.endswith(f"({tmp_path / name}.py:2{WHOLE}")


def test_an_exception_in_the_module_is_told_with_its_line(write, tmp_path):
    name = write("def helper():\n    raise KeyError('two\\nlines')\n\nhelper()\n")
    said = fault(f"{name}:f", tmp_path)
    assert "KeyError: 'two\\\\nlines'" in said or "KeyError: 'two\\nlines'" in said
    assert said.endswith(f"({tmp_path / name}.py:2{WHOLE}")


def test_a_syntax_error_is_told_with_its_line(write, tmp_path):
    name = write("x = 1\ndef f(:\n")
    said = fault(f"{name}:f", tmp_path)
    assert "SyntaxError" in said
    assert said.endswith(f"({tmp_path / name}.py:2{WHOLE}")


def test_a_module_that_exits(write, tmp_path):
    assert "SystemExit: 3" in fault(f"{write('raise SystemExit(3)')}:f", tmp_path)


def test_a_missing_attribute_has_a_hint(write, tmp_path):
    name = write("def small_gpt():\n    pass\n")
    assert f"module {name!r} has no 'smal_gpt'; did you mean 'small_gpt'?" in fault(f"{name}:smal_gpt", tmp_path)


def test_what_cannot_be_called(write, tmp_path):
    assert "is int, which cannot be called" in fault(f"{write('f = 3')}:f", tmp_path)


@pytest.mark.parametrize("reference", ["model", "model:", ":f", "a b:f", "model:f()", "../model:f"])
def test_the_form_is_checked(reference, tmp_path):
    assert "expected package.module:attribute" in fault(reference, tmp_path)


def test_a_namesake_from_elsewhere_is_refused(tmp_path):
    (tmp_path / "json.py").write_text("def f():\n    pass\n")
    assert "the module name 'json' of" in fault("json:f", tmp_path)


def test_call_passes_positional_and_named_arguments(write, tmp_path):
    name = write("def f(a, b, *, c):\n    return a, b, c\n")
    assert call(FactoryConfig(factory=f"{name}:f", args={"c": [1]}), [tmp_path], "x", "y") == ("x", "y", [1])


def test_call_names_the_line_that_raised(write, tmp_path):
    name = write("import json\n\ndef f(text):\n    return json.loads(text)\n")
    with pytest.raises(InvalidInput) as raised:
        call(FactoryConfig(factory=f"{name}:f", args={"text": "{"}), [tmp_path], path="job.yaml", key="data")
    said = str(raised.value)
    assert said.startswith(f"job.yaml: data: '{name}:f' raised JSONDecodeError: ")
    assert said.endswith(f"({tmp_path / name}.py:4{WHOLE}")


def test_call_with_arguments_that_do_not_fit(write, tmp_path):
    name = write("def f(layers):\n    pass\n")
    with pytest.raises(InvalidInput, match=r"does not take these arguments: .*'layer'; it takes \(layers\)") as raised:
        call(FactoryConfig(factory=f"{name}:f", args={"layer": 1}), [tmp_path], path="job.yaml", key="data.factory")
    assert (raised.value.path, raised.value.key) == ("job.yaml", "data.args")


@pytest.mark.parametrize(
    ("body", "said"),
    [
        ("return 1 / 0", "ZeroDivisionError: division by zero"),
        ("raise ValueError('two\\nlines')", "ValueError: two lines"),
        ("raise RuntimeError", "RuntimeError"),
        ("raise SystemExit(0)", "SystemExit: 0"),
        ("raise StopIteration", "StopIteration"),
        ("return len(3)", "TypeError: object of type 'int' has no len()"),
        ("raise ValueError('x' * 9999)", "x …"),
    ],
)
def test_whatever_a_factory_raises_is_one_line_of_bounded_length(write, tmp_path, body, said):
    name = write(f"def f():\n    {body}\n")
    with pytest.raises(InvalidInput) as raised:
        call(FactoryConfig(factory=f"{name}:f"), [tmp_path], path="job.yaml", key="model.factory")
    text = str(raised.value)
    assert text.startswith(f"job.yaml: model.factory: '{name}:f' raised ")
    assert said in text
    assert text.endswith(f"({tmp_path / name}.py:2{WHOLE}")
    assert "\n" not in text
    assert len(text) < 600
