from pathlib import Path

import pytest

from ravnest.checkpoints.run_folder import PAGE_TOKEN
from ravnest.page.access import Access, new_token, token_of

TOKEN = "t" * 32
HERE = {"host": "127.0.0.1:7070"}
GIVEN = {**HERE, "cookie": f"other=1; ravnest-7070={TOKEN}"}


def test_the_token_of_a_run_stays_and_is_its_owners_alone(tmp_path: Path) -> None:
    token = token_of(tmp_path)
    assert len(token) == 32
    assert token_of(tmp_path) == token != new_token()
    assert (tmp_path / PAGE_TOKEN).stat().st_mode & 0o777 == 0o600


@pytest.mark.parametrize("spoil", ["mode", "text", "link"])
def test_a_token_that_others_may_know_or_choose_is_not_used(tmp_path: Path, spoil: str) -> None:
    path = tmp_path / PAGE_TOKEN
    path.write_text("known" if spoil == "text" else TOKEN)
    path.chmod(0o644 if spoil == "mode" else 0o600)
    if spoil == "link":
        path.rename(tmp_path / "elsewhere")
        path.symlink_to(tmp_path / "elsewhere")
    assert token_of(tmp_path) not in (TOKEN, "known")


def test_a_folder_that_cannot_be_written_has_a_new_token_each_time(tmp_path: Path) -> None:
    assert token_of(tmp_path / "none") != token_of(tmp_path / "none")


def test_a_cookie_a_bearer_or_the_link_brings_the_token() -> None:
    access = Access(TOKEN)
    assert access.refused(GIVEN) is None
    assert access.refused({**HERE, "authorization": f"Bearer {TOKEN}"}) is None
    assert access.refused(HERE, asked=TOKEN, navigates=True) is None


@pytest.mark.parametrize(
    "headers",
    [
        HERE,
        {**HERE, "cookie": f"ravnest-7071={TOKEN}"},
        {**HERE, "authorization": "Bearer wrong"},
        {**HERE, "authorization": f"Basic {TOKEN}"},
        {**HERE, "cookie": "ravnest-7070="},
        {**HERE, "cookie": 'ravnest-7070="\\'},
        {**HERE, "authorization": "Bearer ü"},
    ],
)
def test_without_the_token_it_is_refused(headers: dict[str, str]) -> None:
    assert "token" in str(Access(TOKEN).refused(headers))


@pytest.mark.parametrize("host", ["evil.example:7070", "", "localhost.evil.example", "[::1", "127.0.0.1.evil.example"])
def test_a_name_that_leads_here_from_elsewhere_is_refused(host: str) -> None:
    assert "name" in str(Access(TOKEN).refused({**GIVEN, "host": host}, asked=TOKEN))


@pytest.mark.parametrize("host", ["localhost:7070", "[::1]:7070", "192.0.2.7:7070", "attic:7070"])
def test_its_own_names_are_taken(host: str) -> None:
    assert Access(TOKEN, {"attic"}).refused({**GIVEN, "host": host}) is None


def test_other_pages_may_lead_to_it_and_not_ask_it() -> None:
    access = Access(TOKEN)
    cross = {**GIVEN, "sec-fetch-site": "cross-site"}
    assert access.refused(cross, navigates=True) is None
    assert access.refused(cross) == "another page asks"
    assert access.refused({**GIVEN, "origin": "http://evil.example"}) == "another page asks"
    assert access.refused({**GIVEN, "origin": "http://127.0.0.1:8080"}) == "another page asks"
    assert access.refused({**GIVEN, "origin": "http://127.0.0.1:7070", "sec-fetch-site": "same-origin"}) is None
