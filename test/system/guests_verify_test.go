package system

import (
	"encoding/json"
	"os"
	"slices"
	"strings"
	"testing"

	"bulkhead/internal/evidence"
	"bulkhead/internal/layout"
	"bulkhead/internal/wire"
	"bulkhead/test/system/stage"
	"bulkhead/test/system/throwaway"
)

// TestVerifyAndProveCoverGuests attacks from guests that are awake and at them,
// reads them and those that sleep back from the kernel, and has drift of each
// kind noticed.
func TestVerifyAndProveCoverGuests(t *testing.T) {
	bin := stage.Build(t)
	throwaway.Run(t, func(t *testing.T, _ *throwaway.Host) {
		c := host(t, bin)
		manifest := strings.Replace(withGuests, "idle: 5s", "idle: 10m", 1)
		write(t, c.Dir, manifest)
		stage.Sh(t, "umask 077; head -c 64 /dev/urandom | base64 -w0 > /srv/admin.token")
		raw, err := os.ReadFile("/srv/admin.token")
		if err != nil {
			t.Fatal(err)
		}
		c.Run(t, "up")
		tokens := map[string]string{}
		for name, request := range map[string]string{
			"calm": `{"name":"calm","tools":{"allow":["mem","fs"]}}`, "wild": `{"name":"wild","egress":["203.0.113.10:8080"]}`,
			"late": `{"name":"late","tools":{"allow":["mem"]}}`,
		} {
			var one guestMade
			if status, _, body := admin(t, string(raw), "POST", "", request); status != 201 || json.Unmarshal([]byte(body), &one) != nil {
				t.Fatalf("%s: %d %s", name, status, body)
			}
			tokens[name] = one.Token
		}
		touch := func(names ...string) {
			t.Helper()
			for _, name := range names {
				if status, body := wakes(t, "mem_set", `{"key":"a","value":1}`, tokens[name]); status != 200 {
					t.Errorf("%s: %d %s", name, status, body)
				}
			}
		}
		touch("calm", "wild")
		r, report := verify(t, c, "--no-controls")
		if r.Exit != 0 || report.Succeeded != 0 || report.Unproven != 0 {
			t.Errorf("verify ends with %d:\n%s", r.Exit, report.Text())
		}
		made := func(attack string, from evidence.Position, agent, target string) bool {
			return slices.ContainsFunc(report.Rows, func(x evidence.Row) bool {
				return x.Attack == attack && x.Position == from && x.Agent == agent && x.Target == target && x.Verdict == evidence.Denied
			})
		}
		for _, guest := range []string{"calm", "wild"} {
			other := map[string]string{"calm": "wild", "wild": "calm"}[guest]
			for _, p := range []evidence.Position{evidence.FromGateway, evidence.FromAccount} {
				for _, target := range []string{other, "writer"} {
					for _, attack := range []string{"file.other", "file.socket", "file.write_other", "process.signal", "process.memory", "vault.store", "front.socket", "audit.socket", "privilege.foreign_id"} {
						if !made(attack, p, guest, target) && (attack != "vault.store" || target != "writer") { // who has no tools
							t.Errorf("%s was not denied from %s of %s at %s", attack, p, guest, target)
						}
					}
				}
				for _, attack := range []string{"net.unlisted", "kernel.unshare", "vault.keys", "control.warden", "mount.tmpfs"} {
					if !made(attack, p, guest, "") && (attack != "kernel.unshare" || p == evidence.FromGateway) {
						t.Errorf("%s was not denied from %s of %s", attack, p, guest)
					}
				}
			}
			for _, p := range []evidence.Position{evidence.FromRuntime, evidence.FromGateway, evidence.FromAccount} {
				for _, attack := range []string{"file.other", "process.signal", "vault.store", "front.socket"} {
					if !made(attack, p, "writer", guest) {
						t.Errorf("%s was not denied from %s of writer at %s", attack, p, guest)
					}
				}
			}
		}
		if !made("dialer.unlisted", evidence.FromGateway, "wild", "") || !isLeftOut(report, "dialer.unlisted") {
			t.Error("wild has a dialer to attack, and calm has none")
		}
		for _, row := range report.Rows {
			if row.Agent == "late" || row.Target == "late" {
				t.Errorf("%+v of one that sleeps", row)
			}
		}
		if !slices.ContainsFunc(report.Notes, func(n string) bool { return strings.Contains(n, "1 guests sleep") }) {
			t.Errorf("nothing is said of the one that sleeps: %q", report.Notes)
		}
		if r := c.Try(t, "verify", "late"); r.Exit != wire.ExitBadInput || !strings.Contains(r.Stderr, "late sleeps") {
			t.Errorf("verify late: %s", r)
		}

		_, proof := proven(t, c)
		if !proof.OK() {
			t.Fatalf("prove: %v\n%s", broken(proof), proof.Text())
		}
		for agent, ids := range map[string][]string{
			"calm":      {"egress.dialer", "egress.agent", "syscalls", "privileges", "namespaces", "limits", "mounts", "label", "modes", "ids", "writable", "shared"},
			"wild":      {"egress.dialer", "egress.agent", "syscalls", "privileges", "namespaces", "limits", "mounts", "label", "modes", "ids", "writable", "shared"},
			wire.Guests: {"modes", "ids"},
		} {
			for _, id := range ids {
				held := false
				for _, s := range proof.Statements {
					held = held || s.Agent == agent && s.ID == id && s.Holds && (id == "shared" || id == "writable" || len(s.Read) > 0 || strings.HasPrefix(id, "egress"))
				}
				if !held {
					t.Errorf("prove says nothing of %s of %s", id, agent)
				}
			}
		}

		// Drift: of one that sleeps, and of one that is awake.
		if check := checked(t, c); len(check.Broken) != 0 || check.Attacks == 0 || check.Problem != "" {
			t.Fatalf("the first check: %+v", check)
		}
		h := layout.Default()
		for _, tc := range []struct{ open, close, agent, statement string }{
			{"chmod 644 " + h.Agent("pair", "late").GatewayImage(), "chmod 600 " + h.Agent("pair", "late").GatewayImage(), "late", "modes"},
			{"chown 4711 " + h.Agent("pair", "late").GuestFile(), "chown 0 " + h.Agent("pair", "late").GuestFile(), "late", "modes"},
			{"chmod 755 " + h.Agent("pair", "calm").Data(), "chmod 700 " + h.Agent("pair", "calm").Data(), "calm", "modes"},
			{`for f in $(find /sys/fs/cgroup -path '*/wild/gateway/pids.max'); do cat $f > /srv/was; echo max > $f; done`, `for f in $(find /sys/fs/cgroup -path '*/wild/gateway/pids.max'); do cat /srv/was > $f; done`, "wild", "limits"},
		} {
			stage.Sh(t, tc.open)
			_, proof := proven(t, c)
			check := checked(t, c)
			stage.Sh(t, tc.close)
			if got := strings.Join(broken(proof), ","); got != tc.agent+" "+tc.statement {
				t.Errorf("%s: prove: %s", tc.open, got)
			}
			if !slices.ContainsFunc(check.Broken, func(d wire.Drift) bool { return d.Agent == tc.agent && d.Statement == tc.statement }) || len(check.Broken) != 1 {
				t.Errorf("%s: %+v", tc.open, check)
			}
		}
		if check := checked(t, c); len(check.Broken) != 0 {
			t.Errorf("all is as it was: %+v", check)
		}

		// Where the manifest wants it the guest is fenced, and nobody else.
		write(t, c.Dir, strings.Replace(manifest, "team: pair\n", "team: pair\nverify: {every: never, onDrift: fence}\n", 1))
		c.Run(t, "up")
		touch("calm", "wild")
		stage.Sh(t, "chmod 755 "+h.Agent("pair", "calm").Data())
		checked(t, c) // or one that follows the change of the manifest
		if g := c.Status(t).Teams[0].Guests; !slices.Equal(g.Fenced, []string{"calm"}) || g.Fence != nil || c.Agent(t, "writer").State != "running" {
			t.Errorf("drift of calm fences: %+v", g)
		}
		if status, body := wakes(t, "mem_set", `{"key":"a","value":1}`, tokens["calm"]); status != 503 || !strings.Contains(body, "fenced") {
			t.Errorf("calm is fenced: %d %s", status, body)
		}
		touch("wild")
		c.Run(t, "down", "--purge")
	})
}
