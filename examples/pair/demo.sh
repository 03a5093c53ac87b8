#!/bin/bash
# The demo: a team of two, a real agent's turn, a denial, the attacks, and
# nothing left. In a throwaway host by default; HOST=here uses this machine.
set -euo pipefail
here=$(cd "$(dirname "$0")" && pwd)
top=$(cd "$here/../.." && pwd)
bin=$top/bin
say() { printf '\n\033[1m== %s\033[0m\n' "$*"; }

[ "$(id -u)" = 0 ] || { echo "the demo needs root: sudo make demo" >&2; exit 1; }

if [ "${1:-}" != inside ]; then
  cd "$top"
  export CGO_ENABLED=0
  go build -trimpath -o bin/ ./test/system/throwaway/cmd/throwaway-host ./test/clients/scripted-model
  say "images: fetched once, as an id that owns nothing, and kept in the cache"
  for image in base pi; do
    "$bin/bulkhead" image build --fetch-only "images/$image/image.yaml"
  done
  if [ "${HOST:-throwaway}" = here ]; then
    exec "$0" inside
  fi
  say "a throwaway host: this machine's files copy-on-write, nothing else of it"
  cache=${XDG_CACHE_HOME:-$HOME/.cache}/bulkhead
  exec "$bin/throwaway-host" -bind "$cache" -bind "$top" "$0" inside
fi

cd "$here"
log=$(mktemp -d)
model=
finish() {
  status=$?
  if [ -n "$model" ]; then kill "$model" 2> /dev/null || true; fi
  if [ "$status" != 0 ]; then
    echo "demo: FAILED with $status; the warden's last words:" >&2
    tail -n 40 /var/lib/bulkhead/log/warden.log >&2 2> /dev/null || true
    "$bin/bulkhead" down --purge > /dev/null 2>&1 || true
  fi
  rm -rf "$log"
}
trap finish EXIT

# What the host has of ours: accounts, tables, mounts, cgroups, processes.
traces() {
  getent passwd | grep '^bh-' | cut -d: -f1 || true
  nft list tables 2> /dev/null | grep bulkhead || true
  awk '$5 ~ /bulkhead/ && $5 != "/var/lib/bulkhead" {print "mount " $5}' /proc/self/mountinfo
  find /sys/fs/cgroup -type d -name bulkhead 2> /dev/null || true
  for p in /proc/[0-9]*; do
    case $(readlink "$p/exe" 2> /dev/null) in *bulkhead-*) echo "process $(tr '\0' ' ' < "$p/cmdline")" ;; esac
  done
  ls -d /var/lib/bulkhead/teams/* 2> /dev/null || true
}
traces > "$log/before"

say "import the images as root: setuid, capabilities and devices do not survive it"
for image in base pi; do
  "$bin/bulkhead" image build "$top/images/$image/image.yaml"
done
"$bin/bulkhead" image list

say "a model server on this host's loopback: its answers are scripted, the agent is real"
"$bin/scripted-model" -listen 127.0.0.1:18080 -log "$log/model.jsonl" &
model=$!

say "bulkhead up"
"$bin/bulkhead" up
"$bin/bulkhead" status

say "pi takes a turn; it reaches the model through its gateway and nothing else"
"$bin/bulkhead" exec writer -t=false -- sh /workspace/turn.sh < /dev/null | tee "$log/transcript"

say "what the model server saw"
jq -r '"\(.path) from \(.agent), \(.messages) messages -> \(if .tool != "" then "call " + .tool else "final answer" end)"' "$log/model.jsonl"

say "the denial, as the gateway recorded it"
"$bin/bulkhead" logs writer --container gateway | tee "$log/gateway" | grep exfiltrate.example

# What was promised is checked, not only shown.
grep -q 'shell tool works' "$log/transcript"
grep -q 'written by pi, behind walls' "$log/transcript"
if grep -qi 'HTTP/.* 200' "$log/transcript"; then echo "demo: something unlisted answered" >&2; exit 1; fi
[ "$(jq -s 'map(select(.tool == "bash")) | length' "$log/model.jsonl")" = 3 ]

say "bulkhead verify: attacks on every wall, each with its control"
"$bin/bulkhead" verify

say "bulkhead down: nothing is left"
"$bin/bulkhead" down --purge
kill "$model" && wait "$model" 2> /dev/null || true
model=
traces > "$log/after"
if ! diff "$log/before" "$log/after"; then
  echo "demo: the lines above were left on the host" >&2
  exit 1
fi
echo "accounts, tables, mounts, cgroups, processes, teams: as before"
say "the demo passed"
