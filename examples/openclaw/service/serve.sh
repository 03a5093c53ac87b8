# OpenClaw's gateway, on the agent's own loopback.
set -eu
mkdir -p "$HOME/.openclaw"
cp /workspace/openclaw.json "$HOME/.openclaw/openclaw.json"
# The same as hooks.token: with it messages are pushed (messages.push).
printf another-not-a-secret > "$HOME/.hook-token"
chmod 600 "$HOME/.hook-token"
export OPENCLAW_CONFIG_PATH="$HOME/.openclaw/openclaw.json"
exec openclaw gateway run
