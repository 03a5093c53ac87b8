package system

import (
	"strings"
	"testing"
	"time"

	"bulkhead/internal/engine"
	"bulkhead/internal/wire"
	"bulkhead/test/system/stage"
)

// A destination of ask.egress is reached by no way before a person approves it, and by
// none after the grant ended.
func TestAPersonIsPutBeforeADestination(t *testing.T) {
	eachHostile(t, func(kind engine.Kind) string {
		return strings.Replace(withEngine(kind), "    role: writes\n",
			"    role: writes\n    tools: {allow: [mem_get, net], ratePerMinute: 5000}\n    ask: {egress: ['listed.example'], waiting: 2}\n", 1)
	}, func(t *testing.T, c stage.CLI) { while(t, c, destination) })
}

func destination(t *testing.T, c stage.CLI) {
	const to, hello = "listed.example:8080", "hello from outside\n"
	ways := map[string]string{
		"the proxy":         "wget -q -O - http://listed.example:8080/",
		"its bare name":     "env -u http_proxy -u HTTP_PROXY wget -q -O - http://listed.example:8080/",
		"a tunnel":          "p=${http_proxy##*:}; (printf 'CONNECT listed.example:8080 HTTP/1.1\\r\\nHost: listed.example:8080\\r\\n\\r\\n'; sleep 1; printf 'GET / HTTP/1.0\\r\\nHost: listed.example:8080\\r\\n\\r\\n'; sleep 1) | nc 127.0.0.1 ${p%/} | tail -n 1",
		"a tool":            `bulkhead tool call net_http_get '{"url":"http://listed.example:8080/"}' | grep -q '"status":200' && echo hello from outside`,
		"a tool that looks": `bulkhead tool call net_dns_resolve '{"hostname":"listed.example"}' | grep -q 203.0.113.10 && echo hello from outside`,
	}
	reached := func(way string) bool {
		return c.Try(t, "exec", "writer", "--", "sh", "-c", ways[way]).Stdout == hello
	}
	none := func(when string) {
		t.Helper()
		for way := range ways {
			if reached(way) {
				t.Errorf("%s: reached by %s", when, way)
			}
		}
	}
	none("before anybody was asked")
	list := approvals(t, c)
	if len(list) != 1 || list[0].Tool != "egress" || list[0].Scope != to {
		t.Fatalf("%+v", list)
	}
	id := list[0].ID
	stage.Until(t, "status tells of it", func() bool { q := c.Agent(t, "writer").Asking; return q != nil && q.Waiting == 1 })
	stage.Until(t, "and the warden's log", logged(t, "waits for a person", `"agent":"writer"`, id))
	if out := c.Run(t, "why", "writer", to); !strings.Contains(out, "person") {
		t.Error(out)
	}
	if out := c.Run(t, "approvals"); !strings.Contains(out, to) || !strings.Contains(out, id) {
		t.Error(out)
	}
	if r := in(t, c, "exec", "writer", "--", "hostile", "approve", "writer", id); r.Exit != 0 || strings.Contains(r.Stdout, "ANSWERED") || !strings.Contains(r.Stdout, "tried ") {
		t.Errorf("the runtime's own word: %s", r)
	}
	if r := c.Try(t, "approve", "writer", id); r.Exit != wire.ExitBadInput || !strings.Contains(r.Stderr, "--session") {
		t.Errorf("for how long is not said: %s", r)
	}
	none("after the runtime approved it for itself")

	c.Run(t, "approve", "writer", id, "--session")
	for way := range ways {
		if !reached(way) {
			t.Errorf("approved, and not reached by %s: %s", way, c.Try(t, "exec", "writer", "--", "sh", "-xc", ways[way]))
		}
	}
	grants := grantsOf(t, c)
	if len(grants) != 1 || len(approvals(t, c)) != 0 {
		t.Fatalf("%+v, %+v", grants, approvals(t, c))
	}
	// What is open ends with the grant.
	ended := make(chan stage.Result, 1)
	go func() {
		ended <- c.Try(t, "exec", "writer", "--", "sh", "-c", "mkfifo /tmp/never && exec nc listed.example 8080 0<>/tmp/never")
	}()
	stage.Until(t, "a connection is open", func() bool {
		return strings.Contains(c.Run(t, "exec", "writer", "--", "ps"), "nc listed.example")
	})
	select {
	case r := <-ended:
		t.Fatalf("it ended by itself: %s", r)
	case <-time.After(time.Second):
	}
	c.Run(t, "revoke", "writer", grants[0].ID)
	<-ended
	none("after the grant ended")

	list = approvals(t, c)
	if len(list) != 1 || list[0].ID == id {
		t.Fatalf("%+v", list)
	}
	c.Run(t, "deny", "writer", list[0].ID, "--reason", "not now")
	none("denied")
	if again := approvals(t, c); len(again) != 0 {
		t.Errorf("it is asked again: %+v", again)
	}
	if r := c.Try(t, "exec", "writer", "--", "sh", "-c", "wget -O - http://listed.example:8080/ 2>&1; bulkhead tool call net_http_get '{\"url\":\"http://listed.example:8080/\"}' 2>&1"); !strings.Contains(r.String(), "not now") {
		t.Errorf("the person's reason is not told: %s", r)
	}
	stage.Until(t, "the gateway's log says so", func() bool {
		return strings.Contains(c.Run(t, "logs", "writer", "--container", "gateway"), "egress.disapproved")
	})
}
