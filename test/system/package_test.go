package system

import (
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strings"
	"testing"

	"bulkhead/test/system/stage"
	"bulkhead/test/system/throwaway"
)

// TestTheDebianPackageInstallsWorksAndLeaves installs what `make deb` makes,
// uses it from where it was installed, and removes it again.
func TestTheDebianPackageInstallsWorksAndLeaves(t *testing.T) {
	bin := stage.Build(t)
	deb, err := filepath.Abs("../../dist/bulkhead_" + runtime.GOARCH + ".deb")
	if err != nil {
		t.Fatal(err)
	}
	if !throwaway.Inside() {
		cmd := exec.CommandContext(t.Context(), "make", "deb", "DEBS="+runtime.GOARCH)
		cmd.Dir = "../.."
		if out, err := cmd.CombinedOutput(); err != nil {
			t.Fatalf("make deb: %v\n%s", err, out)
		}
	}
	throwaway.Run(t, func(t *testing.T, _ *throwaway.Host) {
		host(t, bin)
		stage.Sh(t, "dpkg --install "+deb)
		c := stage.CLI{Bin: "/usr/bin", Dir: "/srv/team"}
		if out := stage.Sh(t, "ls /run/bulkhead 2>&1 || true; bash -n /usr/share/bash-completion/completions/bulkhead"); strings.Contains(out, "warden.sock") {
			t.Errorf("installing started a warden: %s", out)
		}
		if unit := stage.Sh(t, "cat /usr/lib/systemd/system/bulkhead-warden.service"); !strings.Contains(unit, "ExecStart=/usr/lib/bulkhead/bulkhead-warden ") {
			t.Errorf("the unit starts something else:\n%s", unit)
		}
		if v := c.Run(t, "version"); strings.Contains(v, "dev (") {
			t.Errorf("the build has no name: %s", v)
		}
		// Whatever this machine lacks is not the package's fault; that it
		// could be read is.
		before := c.Try(t, "doctor")
		if before.Exit > 1 || !strings.Contains(before.Stdout, "not running: ") {
			t.Errorf("doctor: %s", before)
		}
		c.Run(t, "up")
		for _, name := range []string{"writer", "reviewer"} {
			if a := c.Agent(t, name); a.State != "running" {
				t.Errorf("%s is %s: %s", name, a.State, a.Why)
			}
		}
		if got := c.Run(t, "exec", "writer", "--", "id", "-u"); got != "1000\n" {
			t.Errorf("id inside: %q", got)
		}
		if exe := stage.Sh(t, `for p in /proc/[0-9]*; do readlink $p/exe || true; done | grep warden`); !strings.Contains(exe, "/usr/lib/bulkhead/bulkhead-warden") {
			t.Errorf("the warden runs from %s", exe)
		}
		if after := c.Try(t, "doctor"); !strings.Contains(after.Stdout, "in use: table inet bulkhead") || !strings.Contains(after.Stdout, "things on this host are ours") {
			t.Errorf("doctor beside a running team: %s", after)
		}
		if out, err := exec.CommandContext(t.Context(), "dpkg", "--remove", "bulkhead").CombinedOutput(); err == nil || !strings.Contains(string(out), "bulkhead down") {
			t.Errorf("the package was removed under running agents: %v\n%s", err, out)
		}
		c.Run(t, "down", "--purge")
		stage.Sh(t, "dpkg --remove bulkhead")
		for _, left := range []string{"/usr/bin/bulkhead", "/usr/lib/bulkhead", "/usr/lib/systemd/system/bulkhead-warden.service"} {
			if _, err := os.Lstat(left); err == nil {
				t.Errorf("%s is left", left)
			}
		}
	})
}

// TestMakeInstallAndUninstall compares the folder before and after.
func TestMakeInstallAndUninstall(t *testing.T) {
	stage.Build(t)
	dest := t.TempDir()
	make := func(target string) {
		cmd := exec.CommandContext(t.Context(), "make", target, "DESTDIR="+dest)
		cmd.Dir = "../.."
		if out, err := cmd.CombinedOutput(); err != nil {
			t.Fatalf("make %s: %v\n%s", target, err, out)
		}
	}
	make("install")
	out, err := exec.CommandContext(t.Context(), filepath.Join(dest, "usr/local/bin/bulkhead"), "version").CombinedOutput()
	if err != nil || !strings.HasPrefix(string(out), "bulkhead ") {
		t.Errorf("version: %v\n%s", err, out)
	}
	programs, err := os.ReadDir(filepath.Join(dest, "usr/local/lib/bulkhead"))
	if err != nil || len(programs) != 7 {
		t.Errorf("%d programs were installed, %v", len(programs), err)
	}
	make("uninstall")
	if err := filepath.WalkDir(dest, func(path string, d os.DirEntry, err error) error {
		if err == nil && !d.IsDir() {
			t.Errorf("%s is left", path)
		}
		return err
	}); err != nil {
		t.Error(err)
	}
}
