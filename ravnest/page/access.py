"""Who may look at a page: who has the run's token, from a page of this server or none.

In: the headers of a request, and the token. Out: yes, or no and why. The token lies in a file of the run's folder that
its owner alone can read (mode 0600), so that a page that is started again has the same link. It allows nothing but
looking: the server knows no request that changes anything.

A browser sends a name in `Host` that a page elsewhere may have made lead here (DNS rebinding), and tells in `Origin`
and `Sec-Fetch-Site` which page asks: both are checked before the token is.
"""

import contextlib
import hmac
import ipaddress
import os
import re
import secrets
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from http.cookies import CookieError, SimpleCookie
from pathlib import Path
from urllib.parse import urlsplit

from ravnest.checkpoints.run_folder import PAGE_TOKEN

_BYTES = 24
_TOKEN = re.compile(r"[A-Za-z0-9_-]{32}")


def new_token() -> str:
    """A token that nobody has yet."""
    return secrets.token_urlsafe(_BYTES)


def token_of(run: Path) -> str:
    """The token of a run's page, which is made where there is none. Where the folder cannot be written, and where the
    file is not its owner's alone, it is a new one each time."""
    path, made = run / PAGE_TOKEN, new_token()
    with contextlib.suppress(OSError):
        try:
            file = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
        except FileExistsError:
            return _read(path) or made
        with os.fdopen(file, "w", encoding="ascii") as opened:
            opened.write(made)
    return made


def _read(path: Path) -> str | None:
    file = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC | os.O_NONBLOCK)
    with os.fdopen(file, "rb") as opened:
        found = os.fstat(opened.fileno())
        text = opened.read(64).decode("ascii", "replace").strip()
    mine = found.st_uid == os.getuid() and not found.st_mode & 0o077
    return text if mine and _TOKEN.fullmatch(text) else None


@dataclass(frozen=True)
class Access:
    """What a request must bring."""

    token: str
    hosts: Collection[str] = ()
    """Names by which the server may be called, beside localhost and addresses."""

    def refused(self, headers: Mapping[str, str], *, asked: str | None = None, navigates: bool = False) -> str | None:
        """Why a request is refused; None where it is not. `asked` is a token in its address, and `navigates` says that
        it is for the page itself, to which a link elsewhere may lead."""
        host = headers.get("host", "")
        if not self._is_ours(host):
            return "this server is not called by that name"
        origin, site = headers.get("origin"), headers.get("sec-fetch-site", "none")
        if origin is not None and origin != f"http://{host}":
            return "another page asks"
        if not navigates and site not in ("none", "same-origin"):
            return "another page asks"
        if not any(hmac.compare_digest(each.encode(), self.token.encode()) for each in self._tokens(headers, asked)):
            return "the token is missing or wrong: open the link that ravnest has printed"
        return None

    def cookie(self, host: str) -> str:
        """The name of the cookie that holds the token. Cookies of all ports of a host are in one box."""
        return f"ravnest-{urlsplit(f'//{host}').port or 80}"

    def _tokens(self, headers: Mapping[str, str], asked: str | None) -> list[str]:
        found = [] if asked is None else [asked]
        scheme, _, bearer = headers.get("authorization", "").partition(" ")
        if scheme.lower() == "bearer":
            found.append(bearer.strip())
        with contextlib.suppress(CookieError):
            kept = SimpleCookie(headers.get("cookie", "")).get(self.cookie(headers.get("host", "")))
            found += [] if kept is None else [kept.value]
        return found

    def _is_ours(self, host: str) -> bool:
        try:
            name = urlsplit(f"//{host}").hostname or ""
            _ = urlsplit(f"//{host}").port
        except ValueError:
            return False
        if name == "localhost" or name in self.hosts:
            return True
        try:
            ipaddress.ip_address(name)
        except ValueError:
            return False
        return True
