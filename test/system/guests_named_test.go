package system

import (
	"encoding/json"
	"os"
	"strings"
	"testing"

	"bulkhead/internal/layout"
	"bulkhead/internal/wire"
	"bulkhead/test/system/stage"
	"bulkhead/test/system/throwaway"
)

// Operators ask for guests by name where they ask for agents, and fence one
// alone, which holds over the warden's end.
func TestGuestsByName(t *testing.T) {
	bin := stage.Build(t)
	throwaway.Run(t, func(t *testing.T, _ *throwaway.Host) {
		c := host(t, bin)
		write(t, c.Dir, withGuests)
		stage.Sh(t, "umask 077; head -c 64 /dev/urandom | base64 -w0 > /srv/admin.token")
		raw, err := os.ReadFile("/srv/admin.token")
		if err != nil {
			t.Fatal(err)
		}
		token := string(raw)
		c.Run(t, "up")
		// As a warden leaves it that dies before the first file of a guest is whole.
		left := layout.Default().Agent("pair", "calm").State
		stage.Sh(t, "mkdir -p -m 711 "+left+"; touch "+left+"/.guest.json.new.new")
		apps := map[string]guestMade{}
		for name, request := range map[string]string{
			"calm": `{"name":"calm","tools":{"allow":["mem"]}}`, "wild": `{"name":"wild","egress":["203.0.113.10:8080"]}`,
		} {
			var one guestMade
			if status, _, body := admin(t, token, "POST", "", request); status != 201 || json.Unmarshal([]byte(body), &one) != nil {
				t.Fatalf("%s: %d %s", name, status, body)
			}
			apps[name] = one
		}
		set := func(name string) (int, string) {
			return wakes(t, "mem_set", `{"key":"a","value":1}`, apps[name].Token)
		}
		works := func(names ...string) {
			t.Helper()
			for _, name := range names {
				if status, body := set(name); status != 200 {
					t.Errorf("%s: %d %s", name, status, body)
				}
			}
		}
		works("calm", "wild")
		if status, body := wakes(t, "net_http_get", `{"url":"http://203.0.113.11:8080/"}`, apps["wild"].Token); status != 403 {
			t.Errorf("what is not listed: %d %s", status, body)
		}

		for _, ask := range []struct {
			args []string
			want string
		}{
			{[]string{"logs", "wild", "--container", "gateway"}, "203.0.113.11:8080"},
			{[]string{"denials", "wild"}, "203.0.113.11:8080"},
			{[]string{"denials", "calm"}, "0 things refused"},
			{[]string{"why", "wild", "203.0.113.10:8080"}, "allowed"},
			{[]string{"why", "wild", "203.0.113.11:8080"}, "front.guests.egress"},
			{[]string{"why", "calm", "message:writer"}, "guests have no messages"},
			{[]string{"why", "calm", "limit:connections"}, "front.guests.limits"},
		} {
			if out := c.Run(t, ask.args...); !strings.Contains(out, ask.want) {
				t.Errorf("%v: %s", ask.args, out)
			}
		}
		for _, args := range [][]string{
			{"exec", "wild", "--", "true"}, {"logs", "wild"}, {"why", "wild", "/etc/shadow"}, {"restart", "wild"}, {"stop", "wild"}, {"allow", "wild", "203.0.113.11:8080", "--for", "1m"},
		} {
			if r := c.Try(t, args...); r.Exit != wire.ExitBadInput || !strings.Contains(r.Stderr, "is a guest") {
				t.Errorf("%v: %s", args, r)
			}
		}

		// One is fenced, and its end is read back; the other goes on.
		runs := func() string {
			return strings.TrimSpace(stage.Sh(t, "cat $(find /sys/fs/cgroup -path '*/pair/wild/*' -name cgroup.procs) /dev/null"))
		}
		gone := func() {
			t.Helper()
			if out := runs(); out != "" {
				t.Errorf("of wild there run %s", out)
			}
			if status, body := set("wild"); status != 503 || !strings.Contains(body, "it is fenced") {
				t.Errorf("fenced: %d %s", status, body)
			}
		}
		if out := c.Run(t, "panic", "wild", "--why", "a test"); !strings.Contains(out, "cut off") || !strings.Contains(out, "frozen") || strings.Contains(out, "writer") {
			t.Errorf("panic: %s", out)
		}
		gone()
		works("calm")
		if g := c.Status(t).Teams[0].Guests; len(g.Fenced) != 1 || g.Fenced[0] != "wild" || g.Fence != nil {
			t.Errorf("%+v", g)
		}
		if status, _, body := admin(t, token, "DELETE", "/wild", ""); status != 503 || !strings.Contains(body, "fenced") {
			t.Errorf("a fenced one is removed: %d %s", status, body)
		}
		kill9(t, wardens(t)...)
		c.Run(t, "up")
		gone()
		c.Run(t, "down")
		c.Run(t, "up")
		gone()
		c.Run(t, "release", "wild")
		works("wild", "calm")
		if r := c.Try(t, "release", "wild"); r.Exit != wire.ExitBadInput || !strings.Contains(r.Stderr, "none of these agents is fenced") {
			t.Errorf("released again: %s", r)
		}

		// A warden that dies once the fence is written leaves one running, which the
		// next one ends.
		kill9(t, wardens(t)...)
		if runs() == "" {
			t.Error("it does not run, so nothing is shown by its end")
		}
		stage.Sh(t, `printf '{"version":1,"since":"2026-01-01T00:00:00Z","by":"a test"}' > `+layout.Default().Agent("pair", "wild").State+"/fence.json")
		c.Run(t, "up")
		stage.Until(t, "the fenced one has ended", func() bool { return runs() == "" })
		gone()
		c.Run(t, "down", "--purge")
	})
}
