package system

import (
	"encoding/json"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"bulkhead/internal/attest"
	"bulkhead/internal/wire"
	"bulkhead/test/system/stage"
	"bulkhead/test/system/throwaway"
)

func TestEvidenceIsSignedKeptAndChecked(t *testing.T) {
	bin := stage.Build(t)
	throwaway.Run(t, func(t *testing.T, _ *throwaway.Host) {
		c := host(t, bin)
		before := stage.Picture(t)
		c.Run(t, "up")
		running(t, c)
		dir := t.TempDir()
		at := func(name string) string { return filepath.Join(dir, name) }
		write := func(name, text string) {
			if err := os.WriteFile(at(name), []byte(text), 0o600); err != nil {
				t.Fatal(err)
			}
		}
		var first, second wire.EvidenceEntry
		r := c.Try(t, "evidence", "make", "--no-controls", "--json", "-o", at("first.json"))
		if err := json.Unmarshal([]byte(r.Stdout), &first); err != nil || r.Exit != 0 {
			t.Fatalf("%v\n%s", err, r)
		}
		if first.Result != attest.Warned { // without controls it cannot be more
			t.Errorf("the result is %s", first.Result)
		}
		for _, path := range []string{first.Path, "/var/lib/bulkhead/evidence/keys/signing.pem"} {
			if st, err := os.Stat(path); err != nil || st.Mode().Perm() != 0o600 {
				t.Errorf("%s: %v, %v", path, st.Mode(), err)
			}
		}
		write("key.pem", c.Run(t, "evidence", "key"))

		// Checked without any warden, by the key alone, and by its id with the
		// warden's keys.
		offline := func(key string, more ...string) stage.Result {
			return c.Try(t, append([]string{"evidence", "verify", at("first.json"), "--socket", at("nobody.sock"), "--key", at(key)}, more...)...)
		}
		if r := offline("key.pem", "--manifest", "bulkhead.yaml"); r.Exit != 0 {
			t.Errorf("checked by the key alone:\n%s", r)
		}
		c.Run(t, "evidence", "verify", first.ID)
		write("other.yaml", "another manifest\n")
		if r := offline("key.pem", "--manifest", at("other.yaml")); r.Exit != wire.ExitFailed {
			t.Errorf("evidence about another manifest:\n%s", r)
		}
		raw, err := os.ReadFile(at("first.json"))
		if err != nil {
			t.Fatal(err)
		}
		write("changed.json", strings.Replace(string(raw), `"sig":"`, `"sig":"AAAA`, 1))
		if r := c.Try(t, "evidence", "verify", at("changed.json")); r.Exit != wire.ExitFailed {
			t.Errorf("a changed file:\n%s", r)
		}

		// A rotation leaves old files good, for those who have the old key.
		c.Run(t, "evidence", "key", "rotate")
		write("new.pem", c.Run(t, "evidence", "key"))
		c.Run(t, "evidence", "verify", at("first.json"))
		if r := offline("new.pem"); r.Exit != wire.ExitFailed || !strings.Contains(r.Stderr, "not known") {
			t.Errorf("a file of the former key, checked with the new one:\n%s", r)
		}

		// A limit that is gone is a difference for the worse.
		stage.Sh(t, `set -e; find /sys/fs/cgroup -path '*/writer/runtime/pids.max' | grep . | while read -r f; do echo max > "$f"; done`)
		r = c.Try(t, "evidence", "make", "--no-controls", "--json")
		if err := json.Unmarshal([]byte(r.Stdout), &second); err != nil || r.Exit != wire.ExitFailed || second.Result != attest.Failed {
			t.Fatalf("a limit is gone: %v\n%s", err, r)
		}
		if r := c.Try(t, "evidence", "diff", first.ID, second.ID); r.Exit != wire.ExitFailed || !strings.Contains(r.Stdout, "statement/writer/limits") {
			t.Errorf("the difference:\n%s", r)
		}
		if page := c.Run(t, "evidence", "report", second.ID); !strings.Contains(page, "<!doctype html>") || !strings.Contains(page, "Does not hold") {
			t.Errorf("the page:\n%.2000s", page)
		}
		var list wire.EvidenceList
		if err := json.Unmarshal([]byte(c.Run(t, "evidence", "list", "--json")), &list); err != nil || len(list.Evidence) != 2 || list.Evidence[0].ID != first.ID {
			t.Errorf("%v: %v", list.Evidence, err)
		}

		// Evidence outlives the team, until it is purged with it.
		c.Run(t, "down")
		if _, err := os.Stat(first.Path); err != nil {
			t.Error(err)
		}
		c.Run(t, "up")
		c.Run(t, "down", "--purge")
		stage.Ended(t)
		if _, err := os.Stat("/var/lib/bulkhead/evidence"); !os.IsNotExist(err) {
			t.Errorf("evidence after a purge: %v", err)
		}
		stage.Leaves(t, before)
	})
}
