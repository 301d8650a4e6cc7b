"""Whether this machine's settings let it join a Ray cluster: the authentication mode, and the token.

Looks at the environment and at the token's file; the findings say nothing of the token itself.
"""

import os
import stat
from pathlib import Path

from ravnest.profiling.findings import THIS_MACHINE, Finding

TOKEN_FILE = "~/.ray/auth_token"
_COPY = (
    f"copy {TOKEN_FILE} from the head (there: `ray get-auth-token --generate`) by a channel you trust, readable by you"
    " alone"
)


def settings_findings(*, joins: bool) -> list[Finding]:
    """`joins`: a cluster is to be joined, so that a token is needed; a Ray of this machine's own makes one."""
    found = []
    mode = os.environ.get("RAY_AUTH_MODE", "token")
    if mode != "token":
        advice = "unset it, or set it to token: ravnest runs with Ray's authentication on"
        found.append(Finding("fails", THIS_MACHINE, f"has RAY_AUTH_MODE={mode}", advice))
    if os.environ.get("RAY_AUTH_TOKEN"):
        return found
    path = Path(os.environ.get("RAY_AUTH_TOKEN_PATH") or TOKEN_FILE).expanduser()
    if not path.is_file():
        if joins:
            found.append(Finding("fails", THIS_MACHINE, f"has no token of Ray's in {path}", _COPY))
    elif path.stat().st_mode & (stat.S_IRWXG | stat.S_IRWXO):
        message = f"lets other users read Ray's token in {path}, who can then run code on all nodes"
        found.append(Finding("warns", THIS_MACHINE, message, f"chmod 600 {path}; on the other machines, too"))
    return found


def join_finding(reason: str) -> Finding:
    """Ray was asked, and would not have us."""
    about_token = any(word in reason.lower() for word in ("token", "auth", "unauthenticated"))
    advice = _COPY if about_token else "see that Ray runs there, of the same version, and that its ports are open"
    return Finding("fails", THIS_MACHINE, reason, advice)
