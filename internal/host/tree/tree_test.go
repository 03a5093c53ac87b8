package tree

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"bulkhead/test/system/throwaway"
)

const agent = 123456 // an id that nothing else has

// home makes a root-owned parent with a folder of the agent in it.
func home(t *testing.T) (parent, dir string) {
	t.Helper()
	parent = "/var/lib/bulkhead/" + strings.ReplaceAll(t.Name(), "/", "_")
	dir = filepath.Join(parent, "home")
	if err := MkdirAll(parent); err != nil {
		t.Fatal(err)
	}
	if err := MakeAll(Entry{Path: dir, UID: agent, GID: agent, Mode: 0o700}); err != nil {
		t.Fatal(err)
	}
	return parent, dir
}

func owner(t *testing.T, path string) uint32 {
	t.Helper()
	var st unix.Stat_t
	if err := unix.Lstat(path, &st); err != nil {
		t.Fatal(err)
	}
	return st.Uid
}

func must(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

func TestRootAmongAgentsFiles(t *testing.T) {
	throwaway.Run(t, func(t *testing.T, _ *throwaway.Host) {
		t.Run("a link in place of a folder is not followed", func(t *testing.T) {
			parent, _ := home(t)
			must(t, os.Symlink("/etc", filepath.Join(parent, "link")))
			if err := MakeAll(Entry{Path: filepath.Join(parent, "link"), UID: agent, GID: agent, Mode: 0o700}); err == nil {
				t.Error("made through a link")
			}
			if owner(t, "/etc") != 0 {
				t.Error("/etc was given away")
			}
		})
		t.Run("a parent that the agent owns is refused", func(t *testing.T) {
			_, dir := home(t)
			if err := MakeAll(Entry{Path: filepath.Join(dir, "x"), Mode: 0o755}); err == nil || !strings.Contains(err.Error(), "must belong to root") {
				t.Errorf("error %v, want one about the owner", err)
			}
		})
		t.Run("a parent that others can write is refused", func(t *testing.T) {
			if _, err := Open("/tmp"); err == nil || strings.Contains(err.Error(), "chmod") {
				t.Errorf("/tmp was accepted, or is to be closed: %v", err)
			}
		})
		t.Run("giving a tree away changes links and not their targets", func(t *testing.T) {
			_, dir := home(t)
			must(t, os.Mkdir(filepath.Join(dir, "sub"), 0o700))
			must(t, os.WriteFile(filepath.Join(dir, "sub", "f"), nil, 0o600))
			must(t, os.Symlink("/etc/shadow", filepath.Join(dir, "sub", "shadow")))
			must(t, os.Symlink("/etc", filepath.Join(dir, "etc")))
			must(t, Chown(dir, agent+1, agent+1))
			for _, p := range []string{"", "sub", "sub/f", "sub/shadow", "etc"} {
				if got := owner(t, filepath.Join(dir, p)); got != agent+1 {
					t.Errorf("%q belongs to %d", p, got)
				}
			}
			if owner(t, "/etc/shadow") != 0 || owner(t, "/etc") != 0 {
				t.Error("the target of a link was given away")
			}
		})
		t.Run("removing a tree removes links and not their targets", func(t *testing.T) {
			parent, dir := home(t)
			outside := filepath.Join(parent, "outside")
			must(t, os.Mkdir(outside, 0o700))
			must(t, os.WriteFile(filepath.Join(outside, "keep"), nil, 0o600))
			must(t, os.Symlink(outside, filepath.Join(dir, "out")))
			must(t, Remove(dir))
			if _, err := os.Lstat(filepath.Join(outside, "keep")); err != nil {
				t.Error("removed through a link")
			}
			if _, err := os.Lstat(dir); err == nil {
				t.Error("not removed")
			}
			must(t, Remove(dir))
			must(t, Remove("/var/lib/bulkhead/never/was/here"))
		})
		t.Run("writing replaces a link instead of following it", func(t *testing.T) {
			parent, _ := home(t)
			p := filepath.Join(parent, "conf")
			must(t, os.Symlink("/etc/motd-target", p))
			must(t, WriteFile(p, []byte("x"), 0o640, 0))
			if _, err := os.Lstat("/etc/motd-target"); err == nil {
				t.Error("written through the link")
			}
			st, err := os.Lstat(p)
			must(t, err)
			if st.Mode() != 0o640 {
				t.Errorf("mode is %v", st.Mode())
			}
		})
	})
}

func TestUncleanPathsAreRefused(t *testing.T) {
	for _, p := range []string{"", "relative", "/a/../b", "/a//b", "/a/"} {
		if d, err := Open(p); err == nil {
			_ = d.Close()
			t.Errorf("Open(%q) was accepted", p)
		}
		if err := MkdirAll(p); err == nil {
			t.Errorf("MkdirAll(%q) was accepted", p)
		}
	}
	for _, name := range []string{"", ".", "..", "a/b", "a\x00b"} {
		if oneName(name) == nil {
			t.Errorf("%q passes for one name", name)
		}
	}
}
