from io import StringIO

from rich.console import Console

from ravnest.cli.views.members import show_hosts, show_people
from ravnest.collaboration.people import Person


def test_people_and_what_they_gave_stand_in_rows_and_names_do_nothing_to_the_terminal() -> None:
    out = StringIO()
    people = [Person("ab" * 32, "lena [bold]\x1b[2J", 12_345, 67, 2, 1), Person("cd" * 32, "otto")]
    show_people(people, Console(file=out, width=80, force_terminal=True, no_color=True))
    text = out.getvalue()
    assert "lena [bold]?[2J" in text
    assert "\x1b[2J" not in text
    rows = [line.split() for line in text.splitlines()]
    assert ["otto", "0", "0", "0", "0", "0", "cd" * 8] in rows
    assert "2 people, most samples first" in text


def test_each_host_has_its_experts_and_how_fast_it_answers() -> None:
    out = StringIO()
    host = {
        "host": "attic",
        "address": "192.0.2.7:7800",
        "experts": ["0.0", "0.1"],
        "most_experts": 4,
        "samples_per_s": 1234.5,
        "answer_ms": 12.5,
        "updates": 4321,
    }
    show_hosts([host], Console(file=out, width=80))
    assert ["attic", "192.0.2.7:7800", "2", "of", "4", "1,234", "12.5", "ms", "4,321"] in [
        line.split() for line in out.getvalue().splitlines()
    ]
