package main

import (
	"encoding/json"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"bulkhead/internal/deny"
	"bulkhead/internal/host/doctor"
	"bulkhead/internal/wire"
)

// diagnosed is a line in each state. One found text tries to act on the
// operator's terminal.
func diagnosed(missing int) doctor.Report {
	r := doctor.Report{SchemaVersion: 1, Missing: missing, Lines: []doctor.Line{
		{Layer: deny.LayerHost, Name: "kernel", State: doctor.OK, Found: "6.12.48", Where: "/proc/sys/kernel/osrelease", Why: "walls are the kernel's"},
		{Layer: deny.LayerHost, Name: "core dumps", State: doctor.Weak, Found: "piped to \x1b]0;evil\a\u202e", Where: "/proc/sys/kernel/core_pattern", Why: "it runs as root", Mend: "sysctl kernel.core_pattern=core"},
		{Layer: deny.LayerPod, Name: "user namespaces without root", State: doctor.Weak, Found: "restricted", Where: "/proc/x", Why: "Podman", Mend: "write this:\nprofile x {\n  userns,\n}\n"},
		{Layer: deny.LayerPod, Name: "SELinux", State: doctor.NotSupported, Found: "enforcing", Where: "/sys/fs/selinux/enforce", Why: "its policy may refuse", Mend: "nobody ran it"},
		{Layer: deny.LayerEgress, Name: "who else writes rules", State: doctor.Unknown, Found: "cannot be read", Where: "netlink(7)", Why: "others can refuse", Mend: "run bulkhead doctor with sudo"},
	}}
	if missing > 0 {
		r.Lines = append(r.Lines, doctor.Line{Layer: doctor.LayerWarden, Name: "ledger", State: doctor.Missing, Found: "corrupt", Where: "/var/lib/bulkhead/ledger.jsonl", Why: "it lists what was made", Mend: "restore it"})
	}
	return r
}

func TestDoctorsScreenAndJSON(t *testing.T) {
	show := func(asJSON bool, missing int) (string, error) {
		f, err := os.CreateTemp(t.TempDir(), "said")
		if err != nil {
			t.Fatal(err)
		}
		a := &app{out: f, json: asJSON}
		verdict := a.diagnosis(diagnosed(missing), false)
		_ = f.Close()
		b, err := os.ReadFile(f.Name())
		if err != nil {
			t.Fatal(err)
		}
		if strings.ContainsAny(string(b), "\x1b\a\u202e") {
			t.Errorf("controls reach the terminal: %q", b)
		}
		return string(b), verdict
	}
	out, err := show(false, 1)
	if err != exitCode(wire.ExitFailed) { //nolint:errorlint // the value itself is the verdict
		t.Errorf("verdict %v", err)
	}
	golden(t, filepath.Join("testdata", "screens", "doctor.txt"), out)
	if out, err = show(true, 1); err == nil {
		t.Error("something is missing, and the verdict is good")
	}
	golden(t, filepath.Join("..", "..", "docs", "contracts", "json", "doctor.json"), out)
	if _, err := show(false, 0); err != nil {
		t.Errorf("nothing is missing: %v", err)
	}
}

func TestDoctorReadsThisHost(t *testing.T) {
	out, errout, code := said(t, "doctor", "--json", "--socket", answers(t, nil))
	var r doctor.Report
	if err := json.Unmarshal([]byte(out), &r); err != nil || errout != "" || r.SchemaVersion != 1 {
		t.Fatalf("%v %q", err, errout)
	}
	if want := min(r.Missing, 1); code != want || len(r.Lines) != len(doctor.Checks()) {
		t.Errorf("exit code %d with %d missing, %d lines", code, r.Missing, len(r.Lines))
	}
	for _, l := range r.Lines {
		if l.Name == "warden" && (l.State != doctor.Weak || !strings.Contains(l.Found, "warden-build")) {
			t.Errorf("the warden of another build: %+v", l)
		}
	}
}

func TestTheManPageNamesEveryCommand(t *testing.T) {
	page, err := os.ReadFile("../../deploy/bulkhead.1")
	if err != nil {
		t.Fatal(err)
	}
	for _, c := range newRoot(&app{}).Commands() {
		if !strings.Contains(string(page), c.Name()) {
			t.Errorf("deploy/bulkhead.1 does not name %s", c.Name())
		}
	}
}
