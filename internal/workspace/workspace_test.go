package workspace

import (
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"
)

func side(t *testing.T, files map[string]string) (*Side, string) {
	t.Helper()
	dir := t.TempDir()
	for p, text := range files {
		full := filepath.Join(dir, p)
		if err := os.MkdirAll(filepath.Dir(full), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(full, []byte(text), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	f, err := os.Open(dir)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = f.Close() })
	return &Side{Root: f}, dir
}

func kinds(d *Difference) string {
	var out []string
	for _, c := range d.Changes {
		out = append(out, string(c.Change)+" "+c.Path)
	}
	return strings.Join(out, ", ")
}

func TestWhatDiffersIsCopiedAndThenNothingDiffers(t *testing.T) {
	from, dir := side(t, map[string]string{"same": "1", "changed": "new", "sub/deep/added": "x", "run.sh": "#!/bin/sh\n"})
	to, at := side(t, map[string]string{"same": "1", "changed": "old", "mine": "keep", "run.sh": "#!/bin/sh\n"})
	if err := os.Chmod(filepath.Join(dir, "run.sh"), 0o755); err != nil {
		t.Fatal(err)
	}
	d, err := Compare(t.Context(), from, to)
	if err != nil || kinds(d) != "changed changed, changed run.sh, added sub/deep/added, missing mine" {
		t.Fatalf("%s, %v", kinds(d), err)
	}
	if n, err := d.Copy(t.Context(), from, to, false); n != 3 || err != nil {
		t.Fatal(n, err)
	}
	if st, err := os.Stat(filepath.Join(at, "run.sh")); err != nil || st.Mode().Perm() != 0o755 {
		t.Errorf("%v, %v", st, err)
	}
	if d, err = Compare(t.Context(), from, to); err != nil || kinds(d) != "missing mine" {
		t.Fatalf("%s, %v", kinds(d), err)
	}
	if _, err := d.Copy(t.Context(), from, to, true); err != nil {
		t.Fatal(err)
	}
	if d, err = Compare(t.Context(), from, to); err != nil || len(d.Changes) != 0 {
		t.Fatalf("%s, %v", kinds(d), err)
	}
	if left, _ := filepath.Glob(filepath.Join(at, ".bulkhead-*")); len(left) != 0 {
		t.Errorf("left behind: %v", left)
	}
}

// The source is an agent's: whatever it holds, nothing outside of either tree
// is read or written, and nothing blocks.
func TestAHostileTreeLeadsNowhere(t *testing.T) {
	secret := filepath.Join(t.TempDir(), "secret")
	if err := os.WriteFile(secret, []byte("secret"), 0o600); err != nil {
		t.Fatal(err)
	}
	from, dir := side(t, map[string]string{"ok": "1", ".git/hooks/post-checkout": "evil", "sub/.GIT/config": "evil", "trap/file": "x"})
	for _, err := range []error{
		os.Symlink(secret, filepath.Join(dir, "link")),
		os.Symlink(filepath.Dir(secret), filepath.Join(dir, "folder-link")),
		syscall.Mkfifo(filepath.Join(dir, "pipe"), 0o666),
	} {
		if err != nil {
			t.Fatal(err)
		}
	}
	to, at := side(t, map[string]string{"keep": "1"})
	outside := t.TempDir()
	if err := os.Symlink(outside, filepath.Join(at, "trap")); err != nil { // the folder that a copy would go through
		t.Fatal(err)
	}
	d, err := Compare(t.Context(), from, to)
	if err != nil || kinds(d) != "added ok, added trap/file, missing keep" {
		t.Fatalf("%s, %v", kinds(d), err)
	}
	var left []string
	for _, l := range d.Left {
		left = append(left, l.Path)
	}
	slices.Sort(left)
	if got := strings.Join(left, " "); got != ".git folder-link link pipe sub/.GIT" {
		t.Errorf("left out: %s", got)
	}
	if n, err := d.Copy(t.Context(), from, to, false); n != 1 || err == nil || !strings.Contains(err.Error(), "trap") {
		t.Errorf("%d copied, %v", n, err)
	}
	if entries, _ := os.ReadDir(outside); len(entries) != 0 {
		t.Errorf("written through a link: %v", entries)
	}
	// The file is swapped between the comparison and the copy.
	for _, swap := range []func(string) error{
		func(p string) error { return os.Symlink(secret, p) },
		func(p string) error { return syscall.Mkfifo(p, 0o666) },
		func(p string) error { return os.Mkdir(p, 0o755) },
	} {
		p := filepath.Join(dir, "ok")
		_ = os.Remove(p)
		if err := swap(p); err != nil {
			t.Fatal(err)
		}
		if err := one(from, to, "ok", false); err == nil {
			t.Error("a swapped file was copied")
		}
		_ = os.Remove(p)
	}
	if got, err := os.ReadFile(filepath.Join(at, "ok")); err != nil || string(got) != "1" {
		t.Errorf("%q, %v", got, err)
	}
}

func TestALinkInThePlaceOfAFileIsReplacedNotFollowed(t *testing.T) {
	from, _ := side(t, map[string]string{"f": "new"})
	to, at := side(t, nil)
	target := filepath.Join(t.TempDir(), "target")
	if err := os.WriteFile(target, []byte("untouched"), 0o644); err != nil {
		t.Fatal(err)
	}
	if err := os.Symlink(target, filepath.Join(at, "f")); err != nil {
		t.Fatal(err)
	}
	if err := one(from, to, "f", false); err != nil {
		t.Fatal(err)
	}
	st, err := os.Lstat(filepath.Join(at, "f"))
	if got, _ := os.ReadFile(target); err != nil || !st.Mode().IsRegular() || string(got) != "untouched" {
		t.Errorf("%v, %v, target %q", st, err, got)
	}
}

func TestTheOperatorWritesAsThePersonBehindSudo(t *testing.T) {
	if os.Getuid() != 0 {
		t.Skip("needs root, to become somebody else")
	}
	t.Setenv("SUDO_UID", "65534")
	as, err := Operator()
	if err != nil || as == nil {
		t.Fatal(err)
	}
	dir := t.TempDir()
	for p := dir; p != "/"; p = filepath.Dir(p) {
		_ = os.Chmod(p, 0o755) // #nosec G302 -- the test's own folders
		if filepath.Dir(p) == os.TempDir() {
			break
		}
	}
	owned := filepath.Join(dir, "owned")
	if err := os.Mkdir(owned, 0o700); err != nil {
		t.Fatal(err)
	}
	if err := as(func() error { return os.WriteFile(filepath.Join(owned, "f"), nil, 0o644) }); err == nil {
		t.Error("the person wrote into root's folder")
	}
	if err := os.Chown(owned, 65534, 65534); err != nil {
		t.Fatal(err)
	}
	if err := as(func() error { return os.WriteFile(filepath.Join(owned, "f"), nil, 0o644) }); err != nil {
		t.Error(err)
	}
	st, err := os.Stat(filepath.Join(owned, "f"))
	if err != nil || st.Sys().(*syscall.Stat_t).Uid != 65534 {
		t.Errorf("%v, %v", st, err)
	}
	if os.Geteuid() != 0 {
		t.Error("the whole program became the person")
	}
	t.Setenv("SUDO_UID", "no number")
	if _, err := Operator(); err == nil {
		t.Error("a SUDO_UID that is none was taken")
	}
}
