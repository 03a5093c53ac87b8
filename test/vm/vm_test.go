//go:build vm

package vm

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"bulkhead/test/mutations"
)

// The folder in the guest, laid out like the repository: bin/, go.mod, and each
// package's folder with its test program and testdata.
const there = "/bulkhead"

// packages are those whose own tests touch what differs between hosts:
// cgroup version 2 and systemd, AppArmor, a newer kernel.
var packages = []string{
	"internal/cgroup", "internal/engine/cell", "internal/engine/launcher", "internal/host/nft", "internal/host/account",
	"internal/host/warden", "test/vm/inside",
}

func TestDebian13(t *testing.T) {
	h := arrive(t, "trixie", append([]string{"test/system"}, packages...))
	t.Run("the host is what the rest takes it for", func(t *testing.T) {
		h.run(t, "/", `
[ "$(cat /proc/1/comm)" = systemd ]
grep -qw memory /sys/fs/cgroup/cgroup.controllers
grep -q apparmor /sys/kernel/security/lsm
uname -a`)
	})
	h.unlabelled(t)
	for _, p := range packages {
		// What belongs to the other suite, or to software that the guest lacks.
		t.Run(p, func(t *testing.T) { h.test(t, p, "'Debian12|TestOrdinarySoftwareRuns|TestSeven|TestCodeRuns'") })
	}
	t.Run("test/system", func(t *testing.T) { h.test(t, "test/system", "", "-test.run=TestATeamComesUp/^cell$") })
}

// unlabelled puts programs into the guest that lack one measure, which only a
// kernel with AppArmor has (test/mutations).
func (g guest) unlabelled(t *testing.T) {
	t.Helper()
	dir, to := t.TempDir(), t.TempDir()
	overlay, err := mutations.WithoutLabel("../..", dir)
	if err != nil {
		t.Fatal(err)
	}
	sh(t, "../..", fmt.Sprintf("go build -trimpath -ldflags='-s -w' -overlay %s -o %s/ ./cmd/...", overlay, to))
	if err := g.Put(t.Context(), to, "/srv/unlabelled"); err != nil {
		t.Fatal(err)
	}
}

// TestUsersWay installs the package, brings a team of seven up under systemd,
// attacks it, restarts the host, pulls the plug, and removes everything again.
func TestUsersWay(t *testing.T) {
	deb := t.TempDir()
	sh(t, "../..", `make deb DEBS=amd64; cp dist/bulkhead_amd64.deb `+deb+`/bulkhead.deb`)
	h := arrive(t, "trixie", []string{"test/vm/inside"})
	if err := h.Put(t.Context(), deb, "/srv/package"); err != nil {
		t.Fatal(err)
	}
	h.test(t, "test/vm/inside", "", "-test.run=^TestSevenFromThePackage$")
	if t.Failed() {
		return
	}
	if err := h.Reboot(t.Context()); err != nil {
		t.Fatal(err)
	}
	h.test(t, "test/vm/inside", "", "-test.run=^TestSevenAfterTheRestart$")
}

func TestDebian12(t *testing.T) {
	h := arrive(t, "bookworm", []string{"test/vm/inside"})
	h.test(t, "test/vm/inside", "", "-test.run=Debian12")
}

// guest is a host with our programs in it.
type guest struct{ *Machine }

// arrive gives a fresh host of a suite with the programs and the test programs
// of packages.
func arrive(t *testing.T, suite string, packages []string) guest {
	t.Helper()
	image, err := Open(t.Context(), ".", suite)
	if errors.Is(err, ErrUnavailable) {
		t.Skipf("expected: no virtual host here: %v", err)
	}
	if err != nil {
		t.Fatal(err)
	}
	tree := build(t, packages)
	m, err := Boot(t.Context(), image)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := m.Close(); err != nil {
			t.Error(err)
		}
	})
	if err := m.Put(t.Context(), tree, there); err != nil {
		t.Fatal(err)
	}
	return guest{m}
}

// build lays out what the guest gets.
func build(t *testing.T, packages []string) string {
	t.Helper()
	root, err := filepath.Abs("../..")
	if err != nil {
		t.Fatal(err)
	}
	to := t.TempDir()
	sh(t, root, fmt.Sprintf(`
mkdir -p %[1]s/bin %[1]s/path
cp go.mod %[1]s/
cp -r deploy %[1]s/
cp test/vm/prebuilt %[1]s/path/go
go build -trimpath -ldflags='-s -w' -o %[1]s/bin/ ./cmd/...`, to))
	for _, p := range packages {
		sh(t, root, fmt.Sprintf(`
mkdir -p %[1]s/%[2]s
[ ! -d %[2]s/testdata ] || cp -r %[2]s/testdata %[1]s/%[2]s/
go test -c -trimpath -ldflags='-s -w' -tags vm -o %[1]s/%[2]s/test ./%[2]s
for main in $(find %[2]s/testdata -name main.go 2> /dev/null); do go build -trimpath -o %[1]s/bin/ ./"$(dirname "$main")"; done
[ -e %[1]s/%[2]s/test ] || { echo "no tests in %[2]s"; exit 1; }`, to, p))
	}
	return to
}

func sh(t *testing.T, dir, script string) {
	t.Helper()
	cmd := exec.CommandContext(t.Context(), "bash", "-euo", "pipefail", "-c", script)
	cmd.Dir = dir
	cmd.Env = append(os.Environ(), "CGO_ENABLED=0") // the guest has another C library
	if out, err := cmd.CombinedOutput(); err != nil {
		t.Fatalf("%s\n%v\n%s", script, err, out)
	}
}

// run runs a script in the guest; the test fails when the script does.
func (g guest) run(t *testing.T, dir, script string) {
	t.Helper()
	var out bytes.Buffer
	exit, err := g.Run(t.Context(), io.MultiWriter(&out, marked{t.Output()}), "bash", "-euo", "pipefail", "-c",
		"export BULKHEAD_TEST_PATIENCE=5 PATH="+there+"/path:$PATH; cd "+dir+"\n"+script)
	if err != nil {
		t.Fatal(err)
	}
	if exit != 0 {
		t.Errorf("exit %d in the guest", exit)
	}
	skipped(t, out.String())
}

// test runs the test program of a package in the guest, without the tests of
// another host.
func (g guest) test(t *testing.T, pkg, not string, args ...string) {
	t.Helper()
	if not != "" {
		args = append(args, "-test.skip="+not)
	}
	g.run(t, there+"/"+pkg, "./test -test.v -test.timeout=15m "+strings.Join(args, " "))
}

var (
	now     = regexp.MustCompile(`^=== (?:RUN|CONT|NAME) +(\S+)`)
	skipOf  = regexp.MustCompile(`^ *--- SKIP: (\S+)`)
	ofInner = regexp.MustCompile(`^ *host\| +--- SKIP`)
)

// skipped fails the test when the guest skipped one that nobody expected to be:
// what was skipped proves nothing. Tests that run side by side print in turns.
func skipped(t *testing.T, out string) {
	t.Helper()
	current, reasons := "", map[string]string{}
	for line := range strings.Lines(out) {
		of := current
		if m := now.FindStringSubmatch(line); m != nil {
			current = m[1]
			continue
		} else if m := skipOf.FindStringSubmatch(line); m != nil {
			of = m[1]
		} else if !ofInner.MatchString(line) {
			if strings.Contains(line, "_test.go:") {
				reasons[current] = line
			}
			continue
		}
		if r := reasons[of]; !strings.Contains(r, "expected:") && !strings.Contains(r, "skipped in its throwaway host") {
			t.Errorf("skipped in the guest: %s%s", line, r)
		}
	}
}

// marked marks the guest's lines, so that its "--- FAIL" is not taken for ours.
type marked struct{ to io.Writer }

func (m marked) Write(b []byte) (int, error) {
	for line := range bytes.Lines(b) {
		if _, err := fmt.Fprintf(m.to, "vm| %s\n", bytes.TrimRight(line, "\n")); err != nil {
			return 0, err
		}
	}
	return len(b), nil
}
