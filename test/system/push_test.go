package system

import (
	"encoding/json"
	"os"
	"strings"
	"testing"
	"time"

	"bulkhead/internal/adapter"
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
			for l := range strings.Lines(string(raw)) {
				lines = append(lines, strings.TrimSpace(l))
			}
			return lines
		}
		queue := func() (q adapter.QueueState) {
			t.Helper()
			var all struct{ Queues []adapter.QueueState }
			if err := json.Unmarshal([]byte(c.Run(t, "msg", "queues", "--json")), &all); err != nil {
				t.Fatal(err)
			}
			for _, one := range all.Queues {
				if one.Agent == "worker" {
					return one
				}
			}
			return q
		}
		if err := os.WriteFile(home+"/hold", nil, 0o600); err != nil {
			t.Fatal(err)
		}
		sent(t, c, "lead", "--to", "worker", "--type", "task_assignment", `"do it"`)
		sent(t, c, "lead", "--to", "worker", "--type", "note", `{"n":2}`)
		// The crash took a lease of 15 s along.
		for end := time.Now().Add(2 * time.Minute); len(asked()) < 2 && time.Now().Before(end); time.Sleep(200 * time.Millisecond) {
		}
		first := asked()
		if len(first) != 2 || first[0] != first[1] || !strings.HasPrefix(first[0], "/hooks/agent|Bearer the hook alone knows it|") || !strings.Contains(first[0], "do it") {
			t.Fatalf("the hook was asked\n%s", strings.Join(first, "\n"))
		}
		// It is at work for longer than a lease: nothing is acknowledged, and nothing comes again.
		time.Sleep(17 * time.Second)
		if q := queue(); q.Queued != 2 || q.Leased != 1 || len(asked()) != 2 {
			t.Errorf("while the hook is at work: %+v, asked %d times", q, len(asked()))
		}
		if err := os.Remove(home + "/hold"); err != nil {
			t.Fatal(err)
		}
		stage.Until(t, "both are acknowledged", func() bool { return queue().Queued == 0 })
		if all := asked(); len(all) != 3 || !strings.Contains(all[2], `{\"n\":2}`) || strings.Split(all[2], "|")[2] == strings.Split(first[0], "|")[2] {
			t.Errorf("the hook was asked\n%s", strings.Join(all, "\n"))
		}
		if q := queue(); q.Leased+q.Retry+q.Dead != 0 {
			t.Errorf("%+v", q)
		}
		if a := c.Agent(t, "worker"); a.State != "running" || a.Restarts != 1 {
			t.Errorf("worker is %s after %d restarts: %s", a.State, a.Restarts, a.Why)
		}
	})
}
