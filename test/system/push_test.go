package system

import (
	"os"
	"strings"
	"testing"
	"time"

	"bulkhead/internal/layout"
	"bulkhead/test/system/stage"
)

// hook answers POST as OpenClaw's /hooks/agent does, as the command of a
// service. It writes down what it was asked, and the first time it is killed
// before it answers.
const hook = `#!/bin/sh
length=0; authorization=; key=; path=
while IFS= read -r line; do
  line=$(printf %s "$line" | tr -d '\r')
  [ -n "$line" ] || break
  case $line in
  POST*) path=${line#POST }; path=${path%% *} ;;
  Content-Length:*) length=${line#*: } ;;
  Authorization:*) authorization=${line#*: } ;;
  Idempotency-Key:*) key=${line#*: } ;;
  esac
done
[ "$length" -gt 0 ] || exit 0 # it was only looked whether somebody listens
body=$(head -c "$length")
printf '%s|%s|%s|%s\n' "$path" "$authorization" "$key" "$body" >> /home/agent/asked
if [ ! -e /home/agent/crashed ]; then
  touch /home/agent/crashed
  kill -9 $PPID
  exit 1
fi
while [ -e /home/agent/hold ]; do sleep 0.1; done
printf 'HTTP/1.1 200 OK\r\nContent-Length: 2\r\nConnection: close\r\n\r\nok'
`

// A message is pushed into a real runtime, and is acknowledged when the hook
// has answered and not before: the first time the service crashes with it.
func TestPushedMessagesAreAcknowledgedByTheHookAlone(t *testing.T) {
	talking(t, engines[onlyCell:1], func(t *testing.T, c stage.CLI) {
		stage.Sh(t, "cat > /srv/rootfs/bin/hook <<'END'\n"+hook+"END\nchmod 755 /srv/rootfs/bin/hook; echo 'the hook alone knows it' > /srv/rootfs/etc/hook-token")
		write(t, c.Dir, strings.Replace(readManifest(t, c), "  worker:\n    rootfs: /srv/rootfs\n    mode: session\n    channels: [all-agents]\n    messages: {to: [lead]}\n", `  worker:
    rootfs: /srv/rootfs
    mode: service
    command: [nc, -ll, -p, "18789", -e, hook]
    channels: [all-agents]
    messages: {to: [lead], push: {port: 18789, tokenFile: /etc/hook-token}}
`, 1))
		c.Run(t, "up")
		home := layout.Default().Agent("talk", "worker").State + "/runtime/home"
		asked := func() (lines []string) {
			raw, err := os.ReadFile(home + "/asked")
			if err != nil && !os.IsNotExist(err) {
				t.Fatal(err)
			}
			return strings.Split(strings.TrimSuffix(string(raw), "\n"), "\n")
		}
		waiting := func() string {
			for line := range strings.Lines(c.Run(t, "msg", "queues")) {
				if f := strings.Fields(line); len(f) > 1 && f[0] == "worker" {
					return strings.Join(f, " ")
				}
			}
			return ""
		}
		if err := os.WriteFile(home+"/hold", nil, 0o600); err != nil {
			t.Fatal(err)
		}
		sent(t, c, "lead", "--to", "worker", "--type", "task_assignment", `"do it"`)
		sent(t, c, "lead", "--to", "worker", "--type", "note", `{"n":2}`)
		// The lease of what the crash took with it ends after 90 s at the latest.
		for end := time.Now().Add(150 * time.Second); len(asked()) < 2 && time.Now().Before(end); time.Sleep(200 * time.Millisecond) {
		}
		t.Log(waiting())
		for _, l := range asked() {
			t.Log(l)
		}
		if err := os.Remove(home + "/hold"); err != nil {
			t.Fatal(err)
		}
		stage.Until(t, "three", func() bool { return len(asked()) == 3 })
		t.Log(waiting(), c.Run(t, "logs", "worker"), c.Run(t, "status"))
	})
}
