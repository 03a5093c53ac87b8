package system

import (
	"encoding/json"
	"strconv"
	"strings"
	"testing"

	"bulkhead/internal/layout"
	"bulkhead/test/system/stage"
	"bulkhead/test/system/throwaway"
)

// withCode gives the writer tools of net and proc, and code an image with bash.
var withCode = strings.Replace(pair, "    mode: service\n", "    mode: service\n    tools: {allow: [net, proc], code: {image: shell}}\n", 1)

func TestCodeOfAnAgentRunsWhereNothingOfItIs(t *testing.T) {
	bin := stage.Build(t)
	throwaway.Run(t, func(t *testing.T, _ *throwaway.Host) {
		c := host(t, bin)
		stage.Rootfs(t, "/var/lib/bulkhead/images/shell/rootfs")
		stage.Sh(t, `cd /var/lib/bulkhead/images/shell/rootfs; cp /bin/bash bin/bash
for f in $(ldd /bin/bash | grep -o '/[^ ]*'); do mkdir -p .$(dirname $f); cp $f .$f; done`)
		write(t, c.Dir, withCode)
		c.Run(t, "up")
		a := c.Agent(t, "writer")
		if a.State != "running" {
			t.Fatalf("%s: %s", a.State, a.Why)
		}
		// By hand, since busybox's wget keeps the body of a refusal to itself. Its
		// side stays open: who closes it hangs up.
		const rest = `p=${http_proxy#http://}; { printf 'POST http://bulkhead.internal/v1/tools/%s HTTP/1.0\r\nHost: bulkhead.internal\r\nAuthorization: Bearer %s\r\nContent-Type: application/json\r\nContent-Length: %d\r\n\r\n%s' "$1" "$(cat /run/bulkhead-token)" "${#2}" "$2"; sleep 60 & echo $! > /tmp/open; wait; } | { nc ${p%:*} ${p##*:}; kill $(cat /tmp/open); }`
		call := func(tool, input string) map[string]any {
			t.Helper()
			_, out, _ := strings.Cut(c.Run(t, "exec", "writer", "--", "sh", "-c", rest, "sh", tool, input), "\r\n\r\n")
			var m map[string]any
			if err := json.Unmarshal([]byte(out), &m); err != nil {
				t.Fatalf("%s: %s", tool, out)
			}
			return m
		}
		got := call("proc_execute", `{"language":"bash","code":"id -u; ls /workspace /.bulkhead /home/agent; cat /etc/passwd; env; exit 3"}`)
		out, _ := got["stdout"].(string)
		if got["exitCode"] != 3.0 || !strings.HasPrefix(out, strconv.Itoa(layout.ProcID)+"\n") || strings.Contains(out, "BULKHEAD") || strings.Contains(out, "agent:x") {
			t.Fatalf("%v\n%s", got, stage.Sh(t, "find /var/lib/bulkhead/teams -name gateway.log -o -name launcher.log | xargs tail -n 20"))
		}
		// What waits for the next is shown, confined, and proven as all else.
		var seen bool
		stage.Until(t, "an interpreter waits", func() bool {
			for _, one := range c.Agent(t, "writer").Containers {
				seen = seen || strings.HasPrefix(one.Name, "code-") && one.Running && one.PID > 0 && one.HostID != stage.Container(t, a, "runtime").HostID && one.HostID != stage.Container(t, a, "gateway").HostID
			}
			return seen
		})
		spawned := call("proc_spawn", `{"language":"bash","code":"while :; do sleep 100; done"}`)
		if r, report := proven(t, c); r.Exit != 0 {
			t.Errorf("prove: %v\n%s", broken(report), report.Text())
		}
		// A warden that is new leaves what runs alone.
		stage.Sh(t, "kill -9 $(pgrep -x bulkhead-warden)")
		c.Run(t, "up")
		if list := call("proc_list", `{}`); !strings.Contains(toJSON(t, list), `"running"`) {
			t.Errorf("after a restart of the warden: %v", list)
		}
		if killed := call("proc_kill", toJSON(t, map[string]any{"processId": spawned["processId"]})); killed["killed"] != true {
			t.Errorf("%v", killed)
		}
		if got := call("net_http_get", `{"url":"http://listed.example:8080/"}`); got["body"] != "hello from outside\n" {
			t.Errorf("%v", got)
		}
		if got := call("net_dns_resolve", `{"hostname":"listed.example"}`); toJSON(t, got["addresses"]) != `["203.0.113.10"]` {
			t.Errorf("%v", got)
		}
		if got := call("net_http_get", `{"url":"http://203.0.113.11:8080/"}`); got["statusCode"] != 403.0 || got["where"] != "egress/egress.not_listed" {
			t.Errorf("%v", got)
		}
		c.Run(t, "down")
		if left := stage.Sh(t, "pgrep -fa '^bash --noprofile' || true"); left != "" {
			t.Errorf("after down: %s", left)
		}
	})
}

func toJSON(t *testing.T, v any) string {
	t.Helper()
	raw, err := json.Marshal(v)
	if err != nil {
		t.Fatal(err)
	}
	return string(raw)
}
