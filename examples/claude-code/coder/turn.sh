# One turn of Claude Code, from the prompt beside this file.
set -eu
export ANTHROPIC_API_KEY="${ANTHROPIC_API_KEY:-not-a-secret}" # the scripted model asks for none
cd /workspace
exec claude -p "$(cat /workspace/prompt.txt)" --allowedTools Bash
