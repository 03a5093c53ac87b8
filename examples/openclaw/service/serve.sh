# OpenClaw's gateway, on the agent's own loopback.
set -eu
mkdir -p "$HOME/.openclaw"
cp /workspace/openclaw.json "$HOME/.openclaw/openclaw.json"
export OPENCLAW_CONFIG_PATH="$HOME/.openclaw/openclaw.json"
exec openclaw gateway run
