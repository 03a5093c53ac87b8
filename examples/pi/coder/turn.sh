# One turn of the agent pi, from the prompt beside this file.
set -eu
mkdir -p "$HOME/.pi/agent"
cp /workspace/models.json "$HOME/.pi/agent/models.json"
cd /workspace
exec pi --provider scripted --model scripted-1 --no-session -p "$(cat /workspace/prompt.txt)"
