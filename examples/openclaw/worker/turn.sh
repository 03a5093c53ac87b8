# One turn of OpenClaw, from the prompt beside this file.
set -eu
mkdir -p "$HOME/.openclaw"
cp /workspace/openclaw.json "$HOME/.openclaw/openclaw.json"
export OPENCLAW_CONFIG_PATH="$HOME/.openclaw/openclaw.json"
exec openclaw agent exec --cwd /workspace --json "$(cat /workspace/prompt.txt)"
