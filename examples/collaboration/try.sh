#!/bin/sh
# Four volunteers and a backbone on this machine: one volunteer is killed, and one comes late.
#   sh examples/collaboration/try.sh [FOLDER]      a new folder; needs some 2 GB of memory; takes a minute on two cores
set -eu
here=$(dirname "$0")
out=${1:-runs/collaboration-example}
python=${PYTHON:-python}
export OMP_NUM_THREADS=1
if [ -e "$out/keys.json" ]; then
    echo "$out holds the collaboration of an earlier try: remove it, or name another folder" >&2
    exit 2
fi
started=
trap 'kill $started 2> /dev/null || true' EXIT  # whatever went wrong, nobody is left behind
trap 'exit 130' INT TERM
"$python" -m ravnest collaborate start "$here/job.yaml" --listen 127.0.0.1:0 --out "$out" &
backbone=$!
started=$backbone
while [ ! -e "$out/invitation.txt" ]; do kill -0 "$backbone"; sleep 0.2; done
volunteer() {
    "$python" -m ravnest collaborate join "$out/invitation.txt" --name "$1" --yes --threads 1 --key-file "$out/$1.key" \
        --patience-minutes 1 > "$out/$1.log" 2>&1 &  # who is too late for the end looks no longer for a backbone
    started="$started $!"
}
volunteer ada; volunteer bob; volunteer carl; killed=$!
while ! grep -q '"peers": 3' "$out/curve.jsonl" 2> /dev/null; do  # until all three have given to one step
    kill -0 "$backbone"
    sleep 0.2
done
echo "carl is killed, and dora comes"
kill -9 "$killed"
volunteer dora
wait "$backbone"
wait
"$python" -m ravnest collaborate people "$out"
grep -h "thank you" "$out/ada.log" "$out/bob.log" "$out/dora.log" || true
