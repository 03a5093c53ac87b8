# What the six agents share: sending, and taking messages one by one.
set -eu
me=$BULKHEAD_AGENT
msg() { /.bulkhead/bulkhead-shim msg "$@"; }
say() { echo "$me: $*"; }

# tell AGENT TYPE BODY [flags]: a message to one agent; on disk when it returns.
tell() { to=$1 kind=$2 body=$3; shift 3; msg send --to "$to" --type "$kind" "$@" "$body" > /dev/null; }
# announce CHANNEL TYPE BODY
announce() { msg send --channel "$1" --type "$2" "$3" > /dev/null; }

# take waits for the next message and fills type, from, seq, channel, attempt
# and lease. Who takes a message says done or refuse.
take() {
  for _ in 1 2 3 4 5 6 7 8; do
    got=$(msg receive --wait 10s --lease 60s)
    lease=$(text lease)
    if [ -n "$lease" ]; then
      type=$(text type) from=$(text from) channel=$(text channel) seq=$(number channel_sequence_id) attempt=$(number attempt)
      return 0
    fi
  done
  say "nothing came for 80 s"
  exit 1
}
done_with() { msg ack "$lease" > /dev/null; }

# text and number read one field of what was taken. The bodies of this example
# are flat, and their keys differ from those of the envelope.
text() { printf '%s' "$got" | sed -n "s/.*\"$1\":\"\([^\"]*\)\".*/\1/p"; }
number() { printf '%s' "$got" | sed -n "s/.*\"$1\":\([0-9]*\).*/\1/p"; }

# Programs and cases travel as base64 in a field of their own.
pack() { base64 -w 0 "$1"; }
unpack() { text "$1" | base64 -d > "$2"; }
