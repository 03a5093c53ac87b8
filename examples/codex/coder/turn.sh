# One turn of Codex, from the prompt beside this file.
set -eu
export MODEL_KEY="${MODEL_KEY:-not-a-secret}" # the scripted model asks for none
mkdir -p "$HOME/.codex"
cp /workspace/config.toml "$HOME/.codex/config.toml"
cd /workspace
exec codex exec --skip-git-repo-check "$(cat /workspace/prompt.txt)" < /dev/null
