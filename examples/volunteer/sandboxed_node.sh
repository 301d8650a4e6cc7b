#!/bin/sh
# Lend this machine to a run with no more rights than a stage needs, by bubblewrap (Debian: apt install bubblewrap).
#
#   sh sandboxed_node.sh HEAD_ADDRESS:6379 OWN_ADDRESS NAME
#
# The job's code runs inside. It sees the system read-only, an empty home and an empty /tmp that are gone afterwards, and
# no process of yours. It may use the network (the stages of a run talk to each other), the processor and memory.
# RAVNEST names the folder whose .venv has ravnest; RAY_AUTH_TOKEN is the run's token, or ~/.ray/auth_token has it.
set -eu

[ $# -eq 3 ] || { echo "usage: sh sandboxed_node.sh HEAD_ADDRESS:6379 OWN_ADDRESS NAME" >&2; exit 2; }
[ "$(id -u)" -ne 0 ] || { echo "root's files are not for the job's code: run this as another account" >&2; exit 2; }
command -v bwrap >/dev/null || { echo "bwrap is missing: install bubblewrap" >&2; exit 2; }
ravnest=$(cd "${RAVNEST:-.}" && pwd)
[ -x "$ravnest/.venv/bin/ray" ] || { echo "$ravnest/.venv/bin/ray is missing: set RAVNEST" >&2; exit 2; }
token=${RAY_AUTH_TOKEN:-$(cat "$HOME/.ray/auth_token")}

# Python itself may lie in the home that is hidden below: its folder is shown again, read-only.
python=$("$ravnest/.venv/bin/python" -c 'import sys; print(sys.base_prefix)')

# The token goes in by a pipe: everybody on this machine can read the words of a command.
exec bwrap \
    --ro-bind / / --dev /dev --proc /proc \
    --tmpfs /tmp --tmpfs /home --tmpfs /root --tmpfs /run --tmpfs /mnt --tmpfs /media --tmpfs /srv \
    --ro-bind "$ravnest" "$ravnest" --ro-bind "$python" "$python" \
    --dir /tmp/home --perms 0700 --dir /tmp/home/.ray --perms 0400 --file 9 /tmp/home/.ray/auth_token \
    --chdir /tmp/home \
    --unshare-user --disable-userns --unshare-pid --unshare-ipc --unshare-uts --unshare-cgroup-try \
    --die-with-parent --new-session --cap-drop ALL \
    --clearenv --setenv PATH "$ravnest/.venv/bin:/usr/local/bin:/usr/bin:/bin" --setenv HOME /tmp/home \
    --setenv RAY_AUTH_MODE token \
    ray start --address="$1" --node-ip-address="$2" --resources="{\"ravnest-$3\": 1}" --block 9<<END
$token
END
