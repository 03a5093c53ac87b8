package system

import (
	"fmt"
	"os"
	"strings"
	"testing"

	"bulkhead/internal/layout"
	"bulkhead/internal/wire"
	"bulkhead/test/system/stage"
	"bulkhead/test/system/throwaway"
)

// withTopics is a team of three of whom two have a public topic.
const withTopics = `apiVersion: bulkhead/v1
team: pair
topics:
  builds: {publish: [ci], read: [lead]}
defaults: {limits: {memory: 96Mi, pids: 64, disk: 32Mi}, tools: {allow: [events]}}
agents:
  ci: {rootfs: /srv/rootfs, mode: session}
  lead: {rootfs: /srv/rootfs, mode: session}
  mute: {rootfs: /srv/rootfs, mode: session}
`

// Agents publish to each other where the manifest names them and nowhere else,
// what was published outlives the server's end, and nothing is left.
func TestAgentsSharePublicTopics(t *testing.T) {
	bin := stage.Build(t)
	throwaway.Run(t, func(t *testing.T, _ *throwaway.Host) {
		c := host(t, bin)
		before := stage.Picture(t)
		write(t, c.Dir, withTopics)
		c.Run(t, "up")
		tool := func(agent, name, input string) string {
			r := c.Try(t, "exec", agent, "--", "bulkhead", "tool", "call", name, input)
			return fmt.Sprintf("%d %s%s", r.Exit, r.Stdout, r.Stderr)
		}
		expect := func(got string, want ...string) {
			t.Helper()
			for _, w := range want {
				if !strings.Contains(got, w) {
					t.Errorf("%s\nhas no %s", got, w)
				}
			}
		}
		expect(tool("lead", "events_subscribe", `{"topic":"public/builds"}`), "0 {", `"position":0`)
		expect(tool("ci", "events_publish", `{"topic":"public/builds","message":{"n":1,"from":"lead"}}`), `"messageId":"public/builds#1"`)
		expect(tool("lead", "events_poll", `{"topic":"public/builds","wait":20}`), `"from":"ci"`, `"message":{"n":1,"from":"lead"}`)
		for agent, call := range map[string]string{"lead": "events_publish", "mute": "events_publish", "ci": "events_poll"} {
			input := `{"topic":"public/builds"}`
			if call == "events_publish" {
				input = `{"topic":"public/builds","message":1}`
			}
			expect(tool(agent, call, input), "4 ", "tools.not_allowed", "topics.builds.")
			expect(c.Run(t, "logs", agent, "--container", "gateway"), "topics.builds.")
		}
		expect(c.Run(t, "why", "mute", "topic:builds/publish"), "denied", "add mute to topics.builds.publish")
		expect(c.Run(t, "why", "ci", "topic:builds/publish"), "allowed")

		// Only that gateway's id may use its socket.
		place := layout.Default().Agent("pair", "ci").ServiceSocket(layout.TopicsName)
		for agent, want := range map[string]string{"ci": "may", "lead": "may not"} {
			id := stage.Container(t, c.Agent(t, agent), "gateway").HostID
			if out := stage.Sh(t, fmt.Sprintf("setpriv --reuid %d --regid %d --clear-groups test -w %s && echo may || echo may not", id, id, place)); strings.TrimSpace(out) != want {
				t.Errorf("the gateway of %s %s", agent, out)
			}
		}

		// The server is killed; what it answered is there, and the way to it again.
		expect(tool("ci", "events_publish", `{"topic":"public/builds","message":2}`), `"seq":2`)
		kill9(t, c.Status(t).Services[0].Containers[0].PID)
		expect(tool("lead", "events_poll", `{"topic":"public/builds","wait":20}`), `"message":2`)
		stage.Until(t, "the server runs again", func() bool {
			s := c.Status(t).Services
			return len(s) == 1 && s[0].Agent == layout.TopicsName && s[0].State == "running"
		})

		// Who may is changed without a restart of anybody, and holds at once.
		was := stage.Container(t, c.Agent(t, "mute"), "gateway").PID
		write(t, c.Dir, strings.Replace(withTopics, "publish: [ci]", "publish: [mute]", 1))
		if out := c.Run(t, "plan"); !strings.Contains(out, "topics.publish: + builds") || !strings.Contains(out, "topics.publish: - builds") {
			t.Errorf("plan: %s", out)
		}
		c.Run(t, "up")
		expect(tool("mute", "events_publish", `{"topic":"public/builds","message":3}`), `"seq":3`)
		expect(tool("ci", "events_publish", `{"topic":"public/builds","message":4}`), "tools.not_allowed")
		if is := stage.Container(t, c.Agent(t, "mute"), "gateway").PID; is != was {
			t.Errorf("the gateway of mute was process %d, and is %d", was, is)
		}

		// What is kept is there after a down that keeps, and gone after one that purges.
		c.Run(t, "down")
		c.Run(t, "up")
		expect(tool("lead", "events_poll", `{"topic":"public/builds"}`), `"message":3`, `"from":"mute"`)
		write(t, c.Dir, strings.Replace(withTopics, "[lead]", "[leed]", 1))
		if r := c.Try(t, "up"); r.Exit != wire.ExitBadInput || !strings.Contains(r.Stderr, `bulkhead.yaml:4:34: topics.builds.read[0]: "leed" is no agent of this team; to mend: did you mean lead?`) {
			t.Errorf("%s", r)
		}

		// Also when the server runs no more, and another team goes on.
		other := stage.CLI{Bin: bin, Dir: "/srv/other"}
		if err := os.MkdirAll(other.Dir, 0o755); err != nil {
			t.Fatal(err)
		}
		write(t, other.Dir, "apiVersion: bulkhead/v1\nteam: other\nagents: {solo: {rootfs: /srv/rootfs, mode: session, limits: {memory: 96Mi, pids: 64, disk: 32Mi}}}\n")
		other.Run(t, "up")
		kept := func() string {
			return strings.TrimSpace(stage.Sh(t, "ls /var/lib/bulkhead/topics/data | tr '\\n' ' '"))
		}
		write(t, c.Dir, withTopics)
		c.Run(t, "down", "--team", "pair")
		if got := kept(); !strings.Contains(got, "pair.db") {
			t.Errorf("down removed what it should keep: %q", got)
		}
		c.Run(t, "down", "--team", "pair", "--purge")
		if got := kept(); got != "" {
			t.Errorf("down --purge left %q", got)
		}
		other.Run(t, "down", "--purge")
		stage.Leaves(t, before)
		if out := stage.Sh(t, "ls -d /var/lib/bulkhead/topics 2>/dev/null || true"); out != "" {
			t.Errorf("left behind: %s", out)
		}
	})
}
