# work.sh STEP: stands for an agent. It writes what it did into its own
# workspace, which no other agent can see, and goes on.
set -eu
echo "$BULKHEAD_AGENT: $1 begins as $(id -un), alone: $(ls /proc | grep -c '^[0-9]') processes in sight"
n=0
while :; do
  n=$((n + 1))
  echo "$BULKHEAD_AGENT: $1 step $n" > /workspace/last
  sleep 5
done
