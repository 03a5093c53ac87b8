package system

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"bulkhead/internal/wire"
	"bulkhead/test/system/stage"
	"bulkhead/test/system/throwaway"
)

// Whatever is wrong, the operator learns where, why and what to do, and the
// host is as it was before.
func TestBadInputChangesNothing(t *testing.T) {
	bin := stage.Build(t)
	throwaway.Run(t, func(t *testing.T, _ *throwaway.Host) {
		c := host(t, bin)
		many := pair
		for i := range 10_000 {
			many += fmt.Sprintf("  a%d: {rootfs: /srv/rootfs, mode: session, command: [/bin/sh]}\n", i)
		}
		for _, k := range []struct {
			name, manifest, prepare, undo string
			exit                          int
			want                          []string // what was found where, and how to mend it
		}{
			{
				name: "broken YAML", manifest: "team: [pair\nagents", exit: wire.ExitBadInput,
				want: []string{"bulkhead.yaml:"},
			},
			{
				name: "an unknown key", manifest: strings.Replace(pair, "mode: service", "mod: service", 1), exit: wire.ExitBadInput,
				want: []string{"bulkhead.yaml:", "mod", "to mend"},
			},
			{
				name: "10,000 agents", manifest: many, exit: wire.ExitBadInput,
				want: []string{"bulkhead.yaml:", "1000"},
			},
			{
				name: "a missing image", manifest: strings.Replace(pair, "rootfs: /srv/rootfs", "image: nothere", 1), exit: wire.ExitBadInput,
				want: []string{"agents.writer", `image "nothere"`, "bulkhead image"},
			},
			{
				name: "a root file system of somebody else", prepare: "cp -a /srv/rootfs /srv/other; chown 1234 /srv/other", undo: "rm -r /srv/other",
				manifest: strings.Replace(pair, "rootfs: /srv/rootfs", "rootfs: /srv/other", 1), exit: wire.ExitBadInput,
				want: []string{"agents.writer", "/srv/other is owned by id 1234", "chown root"},
			},
			{
				name: "an account name of somebody else", prepare: "useradd bh-pair-writer", undo: "userdel bh-pair-writer",
				exit: wire.ExitBadInput, want: []string{"agents.writer", `account "bh-pair-writer"`, "taken by someone else", "rename"},
			},
			{
				name: "an id range of somebody else", undo: "sed -i /^foreign:/d /etc/passwd", exit: wire.ExitBadInput,
				// Inside the second range that useradd will give.
				prepare: `last=$(awk -F: 'BEGIN{n=100000} $2+$3>n{n=$2+$3} END{print n}' /etc/subuid); echo "foreign:x:$((last+70000)):$((last+70000))::/:/bin/false" >> /etc/passwd`,
				want:    []string{"range", "account foreign", "taken by someone else", "move that account", "nothing was changed"},
			},
			{
				name: "a full disk", prepare: "mount -t tmpfs -o size=8m,mode=0755 tmpfs /var/lib/bulkhead", undo: "umount -l /var/lib/bulkhead",
				exit: wire.ExitBadInput, want: []string{"/var/lib/bulkhead", "MiB free", "free some space"},
			},
			{
				name: "no useradd", prepare: "mv $(command -v useradd) /srv/useradd", undo: "mv /srv/useradd /usr/sbin/useradd",
				exit: wire.ExitMissing, want: []string{"useradd", "install the package passwd"},
			},
			{
				name: "a read-only /etc", prepare: "mount --bind /etc /etc; mount -o remount,ro,bind /etc", undo: "umount /etc",
				exit: wire.ExitFailed, want: []string{"useradd", "nothing was changed"},
			},
		} {
			t.Run(k.name, func(t *testing.T) {
				if k.manifest == "" {
					k.manifest = pair
				}
				write(t, c.Dir, k.manifest)
				stage.Sh(t, k.prepare)
				before := stage.Picture(t)
				{
					r := c.Try(t, "up")
					if r.Exit != k.exit {
						t.Errorf("%s, want exit %d", r, k.exit)
					}
					for _, w := range k.want {
						if !strings.Contains(r.Stderr, w) {
							t.Errorf("%q is not in %.2000s", w, r.Stderr)
						}
					}
				}
				stage.Leaves(t, before)
				stage.Sh(t, k.undo)
			})
		}
		write(t, c.Dir, pair)
		c.Run(t, "up")
		running(t, c)
		c.Run(t, "down", "--purge")
	})
}

// A manifest that was refused half-way must not come into force later, when
// something of the old one is started again.
func TestARefusedManifestIsForgotten(t *testing.T) {
	bin := stage.Build(t)
	throwaway.Run(t, func(t *testing.T, _ *throwaway.Host) {
		c := host(t, bin)
		c.Run(t, "up")
		stage.Sh(t, `last=$(awk -F: '$2+$3>n{n=$2+$3} END{print n}' /etc/subuid); echo "foreign:x:$((last+5)):$((last+5))::/:/bin/false" >> /etc/passwd`)
		before := stage.Picture(t)
		wide := strings.Replace(pair, "'listed.example:8080'", "'listed.example:8080', 'evil.example:8080'", 1)
		wide = strings.Replace(wide, "listed.example: 203.0.113.10", "listed.example: 203.0.113.10, evil.example: 203.0.113.11", 1)
		write(t, c.Dir, wide+"  third: {rootfs: /srv/rootfs, mode: session, command: [/bin/sh]}\n")
		if r := c.Try(t, "up"); r.Exit != wire.ExitBadInput || !strings.Contains(r.Stderr, "nothing was changed") {
			t.Errorf("%s", r)
		}
		for _, d := range stage.Differ(before, stage.Picture(t)) {
			t.Error(d)
		}
		pid := stage.Container(t, c.Agent(t, "writer"), "runtime").PID
		kill9(t, pid)
		stage.Until(t, "the writer runs again", func() bool {
			a := c.Agent(t, "writer")
			return a.State == "running" && stage.Container(t, a, "runtime").PID != pid
		})
		if r := c.Try(t, "exec", "writer", "--", "wget", "-q", "-O", "-", "http://evil.example:8080/"); r.Exit == 0 {
			t.Errorf("the refused manifest is in force: %s", r)
		}
		c.Run(t, "down", "--purge")
	})
}

// A team whose state was lost still runs: it is shown, nothing of it is given
// to others, and applying its manifest brings it back.
func TestATeamWhoseStateWasLost(t *testing.T) {
	bin := stage.Build(t)
	throwaway.Run(t, func(t *testing.T, _ *throwaway.Host) {
		c := host(t, bin)
		before := stage.Picture(t)
		c.Run(t, "up")
		kill9(t, wardens(t)...)
		if err := os.WriteFile("/var/lib/bulkhead/teams/pair/state.json", []byte("garbage"), 0o600); err != nil {
			t.Fatal(err)
		}
		other := filepath.Join(c.Dir, "other.yaml")
		if err := os.WriteFile(other, []byte(strings.Replace(pair, "team: pair", "team: other", 1)), 0o644); err != nil {
			t.Fatal(err)
		}
		c.Run(t, "up", "-f", other)
		ids := strings.Fields(stage.Sh(t, "ps -eo uid,args | awk '/[b]ulkhead-net dialer/{print $1}'"))
		seen := map[string]bool{}
		for _, id := range ids {
			if seen[id] {
				t.Errorf("two dialers have the id %s: one team has the other's destinations", id)
			}
			seen[id] = true
		}
		if len(ids) != 4 {
			t.Errorf("%d dialers run, want those of two teams: %v", len(ids), ids)
		}
		if out := c.Run(t, "status"); !strings.Contains(out, "bh-pair-writer") || !strings.Contains(out, "bulkhead up -f") {
			t.Errorf("status hides the team whose state was lost:\n%s", out)
		}
		c.Run(t, "down", "--team", "other", "--purge")
		if n := strings.TrimSpace(stage.Sh(t, "pgrep -fc '[b]ulkhead-net dialer' || true")); n != "2" {
			t.Errorf("%s dialers run after the other team's end, want the lost team's two", n)
		}
		c.Run(t, "up")
		running(t, c)
		once(t)
		c.Run(t, "down", "--purge")
		stage.Leaves(t, before)
	})
}
