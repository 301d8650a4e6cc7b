import pickle
import traceback

from ravnest_errors import InvalidInput, RavnestError


def test_a_message_names_file_and_key() -> None:
    error = InvalidInput("must be above 0", path="nodes.yaml", key="nodes[2].up_mbps")
    assert str(error) == "nodes.yaml: nodes[2].up_mbps: must be above 0"
    assert (error.path, error.key, error.hint, error.exit_code) == ("nodes.yaml", "nodes[2].up_mbps", None, 2)


def test_several_problems_give_a_line_each() -> None:
    error = InvalidInput.several([("a", "one"), (None, "two")], path="f")
    assert str(error) == "f: a: one\nf: two"
    assert error.key == "a"


def test_an_error_without_a_file_can_be_given_one() -> None:
    located = InvalidInput("must be above 0", hint="use 1").located("job.yaml", "seed")
    assert (str(located), located.hint) == ("job.yaml: seed: must be above 0", "use 1")
    assert located.located("other.yaml", "other") is located


def test_a_hint_is_shown_below_the_message_of_a_traceback() -> None:
    error = InvalidInput("must be above 0", key="seed", hint="use 1")
    assert traceback.format_exception(error)[-2:] == [
        "ravnest_errors.InvalidInput: seed: must be above 0\n",
        "hint: use 1\n",
    ]


def test_an_error_keeps_its_parts_on_its_way_between_processes() -> None:
    error = InvalidInput("must be above 0", path="job.yaml", key="seed", hint="use 1")
    copy = pickle.loads(pickle.dumps(error))
    assert (str(copy), vars(copy)) == (str(error), vars(error))


def test_one_base_catches_all() -> None:
    assert issubclass(InvalidInput, RavnestError)
    assert RavnestError("no").hint is None
