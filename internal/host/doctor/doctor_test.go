package doctor

import (
	"context"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"testing/fstest"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/rogpeppe/go-internal/txtar"
	"golang.org/x/sys/unix"

	"bulkhead/internal/layout"
)

var update = flag.Bool("update", false, "rewrite the wanted lines in testdata")

// fixture is a host in a file: testdata/NAME.txtar holds its files, kernel.json
// what no file answers, and want: what doctor makes of it.
type fixture struct {
	IsRoot   bool              `json:"root"`
	Landlock int               `json:"landlock"`
	NoFilter bool              `json:"noSeccomp"`
	NfTables []string          `json:"tables"`
	FreeGiB  uint64            `json:"freeGiB"`
	Inodes   uint64            `json:"freeInodes"`
	Time     time.Time         `json:"time"`
	Synced   bool              `json:"synchronised"`
	Versions map[string]string `json:"versions"`
	Warden   string            `json:"warden"` // its build; "" when none runs
	Secret   []string          `json:"secret"` // files that only root may read
}

func (f fixture) Root() bool       { return f.IsRoot }
func (f fixture) LandlockABI() int { return f.Landlock }

func (f fixture) Seccomp() error {
	if f.NoFilter {
		return unix.EINVAL
	}
	return nil
}

func (f fixture) Netfilter() error { return nil }

func (f fixture) Tables() (all []Table, err error) {
	if !f.IsRoot {
		return nil, unix.EPERM
	}
	for _, t := range f.NfTables {
		family, name, _ := strings.Cut(t, " ")
		all = append(all, Table{family, name})
	}
	return all, nil
}

func (f fixture) Space(string) (Space, error) {
	return Space{Bytes: 100 << 30, FreeBytes: f.FreeGiB << 30, Inodes: 1_000_000, FreeInodes: f.Inodes}, nil
}

func (f fixture) Clock() (time.Time, bool, error) { return f.Time, f.Synced, nil }

func (f fixture) Version(_ context.Context, path string) (string, error) {
	if v, ok := f.Versions[path]; ok {
		return v, nil
	}
	return "", errors.New("it does not start")
}

// guarded refuses some names, as the kernel does to accounts other than root.
type guarded struct {
	fs.FS
	secret []string
}

func (g guarded) Open(name string) (fs.File, error) {
	for _, s := range g.secret {
		if name == s {
			return nil, &fs.PathError{Op: "open", Path: name, Err: fs.ErrPermission}
		}
	}
	return g.FS.Open(name)
}

func load(t *testing.T, file string) (Host, *txtar.Archive) {
	t.Helper()
	raw, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	a := txtar.Parse(raw)
	files := fstest.MapFS{}
	var f fixture
	for _, x := range a.Files {
		switch x.Name {
		case "kernel.json":
			if err := json.Unmarshal(x.Data, &f); err != nil {
				t.Fatal(err)
			}
		case "want":
		default:
			mode := fs.FileMode(0o644)
			if strings.Contains(filepath.Dir(x.Name), "bin") {
				mode = 0o755
			}
			files[x.Name] = &fstest.MapFile{Data: x.Data, Mode: mode}
		}
	}
	h := Host{Files: guarded{files, f.Secret}, Kernel: f, Layout: layout.Default(), Build: "this-build"}
	h.Ping = func(context.Context) (string, bool, error) {
		if f.Warden == "" {
			return "", true, errors.New("no warden")
		}
		return f.Warden, false, nil
	}
	return h, a
}

func TestHostsInFiles(t *testing.T) {
	all, err := filepath.Glob("testdata/*.txtar")
	if err != nil || len(all) < 5 {
		t.Fatalf("%d fixtures, %v", len(all), err)
	}
	for _, file := range all {
		t.Run(strings.TrimSuffix(filepath.Base(file), ".txtar"), func(t *testing.T) {
			h, a := load(t, file)
			r := Examine(t.Context(), h)
			var b strings.Builder
			missing := 0
			for _, l := range r.Lines {
				fmt.Fprintf(&b, "%s | %s | %s | %s\n", l.State, l.Layer, l.Name, l.Found)
				if l.State == Missing {
					missing++
				}
				if l.Where == "" || l.Why == "" || l.Found == "" || (l.Mend == "") != (l.State == OK) {
					t.Errorf("incomplete: %+v", l)
				}
			}
			if missing != r.Missing {
				t.Errorf("%d lines are missing, the report says %d", missing, r.Missing)
			}
			for i, f := range a.Files {
				if f.Name != "want" {
					continue
				}
				if *update {
					a.Files[i].Data = []byte(b.String())
					if err := os.WriteFile(file, txtar.Format(a), 0o600); err != nil {
						t.Fatal(err)
					}
				} else if diff := cmp.Diff(string(f.Data), b.String()); diff != "" {
					t.Errorf("-want +got; go test -update rewrites it:\n%s", diff)
				}
				return
			}
			t.Error("the fixture says not what is wanted")
		})
	}
}

func TestUbuntusRestrictionComesWithTheProfileThatMendsIt(t *testing.T) {
	h, _ := load(t, "testdata/ubuntu.txtar")
	a := withoutRoot(t.Context(), h)
	if a.State != Weak || !strings.Contains(a.Mend, "userns,") || !strings.Contains(a.Mend, podmanRules) {
		t.Errorf("%+v", a)
	}
	if !grantsUserns(UserNamespaceProfile) || grantsUserns("# userns,\n") {
		t.Error("the profile that mends is not recognised, or a comment is taken for the rule")
	}
}

func TestEveryFeatureCanBeAskedOnAHostWithNothing(t *testing.T) {
	h := Host{Files: fstest.MapFS{}, Kernel: fixture{NoFilter: true}, Layout: layout.Default()}
	features := Features()
	if len(features) < 7 {
		t.Fatalf("%d features", len(features))
	}
	for _, f := range features {
		if a := f.Look(t.Context(), h); a.State == OK && f.Name != "nftables" && f.Name != "AppArmor profiles" { // the last is for what the host has
			t.Errorf("%s is well on a host that has nothing: %+v", f.Name, a)
		}
	}
}

// TestThisHost reads the machine that the test runs on: the parsers meet what
// this kernel really prints.
func TestThisHost(t *testing.T) {
	r := Examine(t.Context(), Here())
	if len(r.Lines) != len(Checks()) {
		t.Errorf("%d lines of %d checks", len(r.Lines), len(Checks()))
	}
	for _, l := range r.Lines {
		if l.Name == "kernel" && l.State == Unknown {
			t.Errorf("%+v", l)
		}
	}
}

func TestWhatCoversProc(t *testing.T) {
	const proc = "22 27 0:21 / /proc rw - proc proc rw\n"
	for name, c := range map[string]struct {
		mounts string
		found  bool
		by     []string
	}{
		"bare":                               {proc, true, nil},
		"none":                               {"27 1 254:0 / / rw - ext4 /dev/vda rw\n", false, nil},
		"a part of another proc is none":     {"22 27 0:21 /sys /proc/sys rw - proc proc rw\n", false, nil},
		"binfmt_misc lies in an empty place": {proc + "30 22 0:40 / /proc/sys/fs/binfmt_misc rw - autofs x rw\n", true, nil},
		"a container's mask":                 {proc + "30 22 0:40 / /proc/kcore rw - tmpfs tmpfs rw\n", true, []string{"/proc/kcore"}},
		"a second, whole one":                {proc + "30 22 0:40 / /proc/kcore rw - tmpfs tmpfs rw\n31 27 0:50 / /mnt/proc rw - proc proc rw\n", true, nil},
	} {
		t.Run(name, func(t *testing.T) {
			found, by := covers(parseMounts(c.mounts))
			if found != c.found {
				t.Errorf("found %v", found)
			}
			if diff := cmp.Diff(c.by, by); diff != "" {
				t.Error(diff)
			}
		})
	}
}

func TestVersions(t *testing.T) {
	for text, want := range map[string][2]int{
		"6.18.44-fc-v669": {6, 18}, "podman version 4.3.1": {4, 3}, "runc version 1.1.5+ds1": {1, 1},
		"systemd 252 (252.39-1~deb12u1)": {252, 0}, "6.1": {6, 1}, "v1.2": {1, 2},
	} {
		if got, ok := parseVersion(text); !ok || got != want {
			t.Errorf("%q: %v %v", text, got, ok)
		}
	}
	for _, text := range []string{"", "none", "x.y", "99999999.1"} {
		if v, ok := parseVersion(text); ok {
			t.Errorf("%q is %v", text, v)
		}
	}
}
