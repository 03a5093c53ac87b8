#!/bin/bash
# Six scripted agents do a small piece of work through messages, and nothing is
# left. In a throwaway host by default; HOST=here uses this machine.
set -euo pipefail
here=$(cd "$(dirname "$0")" && pwd)
top=$(cd "$here/../.." && pwd)
bin=$top/bin
say() { printf '\n\033[1m== %s\033[0m\n' "$*"; }

[ "$(id -u)" = 0 ] || { echo "the demo needs root: sudo make demo" >&2; exit 1; }

if [ "${1:-}" != inside ]; then
  cd "$top"
  export CGO_ENABLED=0
  go build -trimpath -o bin/ ./test/system/throwaway/cmd/throwaway-host
  "$bin/bulkhead" image build --fetch-only images/base/image.yaml
  if [ "${HOST:-throwaway}" = here ]; then
    exec "$0" inside
  fi
  cache=${XDG_CACHE_HOME:-$HOME/.cache}/bulkhead
  exec "$bin/throwaway-host" -bind "$cache" -bind "$top" "$0" inside
fi

cd "$here"
log=$(mktemp -d)
finish() {
  status=$?
  if [ "$status" != 0 ]; then
    echo "demo: FAILED with $status" >&2
    for agent in orchestrator pm engineering qa_validation research_design growth_gtm comm_adapter; do
      "$bin/bulkhead" logs "$agent" --tail 20 2> /dev/null | sed "s/^/  $agent| /" >&2 || true
    done
    tail -n 40 /var/lib/bulkhead/log/warden.log >&2 2> /dev/null || true
    "$bin/bulkhead" down --team seven --purge > /dev/null 2>&1 || true
  fi
  rm -rf "$log"
}
trap finish EXIT

say "a team of six; the seventh is the adapter, the only way from one to another"
"$bin/bulkhead" image build "$top/images/base/image.yaml" > /dev/null
"$bin/bulkhead" up

say "they work; this waits for the orchestrator to have tried the result"
state() { "$bin/bulkhead" status --json | jq -r --arg a "$1" '.teams[].agents[] | select(.agent == $a) | .containers[] | select(.name == "runtime") | .exit // "runs"'; }
agents=(orchestrator pm engineering qa_validation research_design growth_gtm)
for _ in $(seq 120); do
  left=
  for agent in "${agents[@]}"; do [ "$(state "$agent")" != runs ] || left+=" $agent"; done
  [ -n "$left" ] || break
  sleep 0.5
done

say "what they said to one another: assignment, clarification, escalation, decision, refusal, result"
"$bin/bulkhead" msg tail --all | sed -E 's/"(program|cases)":"[^"…]*["…]/"\1":"…"/g' | tee "$log/messages"

say "what each of them says it did"
for agent in "${agents[@]}"; do "$bin/bulkhead" logs "$agent" | grep "^$agent:" || true; done | tee "$log/said"

# What was promised is checked, not only shown.
[ -z "$left" ] || { echo "demo: still at work:$left" >&2; exit 1; }
for agent in "${agents[@]}"; do [ "$(state "$agent")" = 0 ] || { echo "demo: $agent failed" >&2; exit 1; }; done
for what in 'orchestrator -> pm  task_assignment' 'engineering -> pm  clarification' 'engineering -> orchestrator  escalation' \
  'orchestrator  policy_decision' 'qa_validation -> engineering  rejected' 'pm -> orchestrator  result'; do
  grep -qF -- "$what" "$log/messages" || { echo "demo: nobody said: $what" >&2; exit 1; }
done
grep -q 'refused attempt 1' "$log/said"
grep -q 'becomes hello-world-part-2' "$log/said"
"$bin/bulkhead" dlq list | grep -qx 'no dead letters'

say "bulkhead down: nothing is left"
"$bin/bulkhead" down --team seven --purge > "$log/down"
if getent passwd | grep '^bh-seven-' || ls -d /var/lib/bulkhead/teams/seven 2> /dev/null; then
  echo "demo: the lines above were left on the host" >&2
  exit 1
fi
say "the team of seven passed"
