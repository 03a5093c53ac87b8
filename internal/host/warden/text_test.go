package warden

import (
	"context"
	"net/netip"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"bulkhead/internal/deny"
	"bulkhead/internal/host/doctor"
	"bulkhead/internal/layout"
)

func TestNameServersOfResolvConf(t *testing.T) {
	for name, c := range map[string]struct {
		conf string
		want []string
	}{
		"two, with comments":               {"# x\nnameserver 192.0.2.1\nsearch a b\nnameserver 2001:db8::1 # two\n", []string{"192.0.2.1", "2001:db8::1"}},
		"with a zone":                      {"nameserver fe80::1%eth0\n", []string{"fe80::1"}},
		"unreadable ones are left out":     {"nameserver x\nnameserver 192.0.2.1\n", []string{"192.0.2.1"}},
		"none means this host":             {"", []string{"127.0.0.1"}},
		"a line without an address counts": {"nameserver\n", []string{"127.0.0.1"}},
	} {
		t.Run(name, func(t *testing.T) {
			var got []string
			for _, a := range parseNameServers(c.conf) {
				got = append(got, a.String())
			}
			if diff := cmp.Diff(c.want, got); diff != "" {
				t.Error(diff)
			}
		})
	}
}

func FuzzNameServers(f *testing.F) {
	f.Add("nameserver 192.0.2.1\n")
	f.Fuzz(func(t *testing.T, conf string) {
		for _, a := range parseNameServers(conf) {
			if !a.IsValid() || a.Zone() != "" || a.Is4In6() {
				t.Errorf("%v is not an address that a rule can hold", a)
			}
			if _, err := netip.ParseAddr(a.String()); err != nil {
				t.Error(err)
			}
		}
	})
}

func TestAGroupIsFoundByItsWholeName(t *testing.T) {
	text := "root:x:0:\nbulkhead-operators-x:x:7:\n bulkhead-operators:x:8:a,b\nbroken\n"
	if gid, ok := groupID(text, "bulkhead-operators"); !ok || gid != 8 {
		t.Errorf("got %d, %v; want 8", gid, ok)
	}
	if _, ok := groupID(text, "bulkhead"); ok {
		t.Error("a part of a name was taken for the name")
	}
}

// The test's own process has no filter and every capability, or is an ordinary
// user: either way it must not pass for a confined container.
func TestAnUnconfinedProcessDoesNotPassForAContainer(t *testing.T) {
	c, err := confinementOf(os.Getpid())
	if err != nil {
		t.Fatal(err)
	}
	ids := layout.IDs{Account: 1, Base: uint32(os.Getuid()), Dialer: 2}
	if err := c.check(ids, false); err == nil {
		t.Errorf("%+v passes", c)
	}
}

func TestEachMissingProtectionIsNamed(t *testing.T) {
	const good = "Uid:\t100999\t100999\t100999\t100999\nNoNewPrivs:\t1\nSeccomp:\t2\n" +
		"CapInh:\t0000\nCapPrm:\t0000\nCapEff:\t0000\nCapBnd:\t0000\nCapAmb:\t0000\n"
	ids := layout.IDs{Account: 1001, Base: 100000, Dialer: 7}
	for name, c := range map[string]struct{ old, new, problem string }{
		"all in force":         {"x", "x", ""},
		"no filter":            {"Seccomp:\t2", "Seccomp:\t0", "no seccomp filter"},
		"privileges":           {"NoNewPrivs:\t1", "NoNewPrivs:\t0", "may gain privileges"},
		"a bounding set":       {"CapBnd:\t0000", "CapBnd:\t0001", "has capabilities (CapBnd"},
		"a foreign saved id":   {"100999\t100999\n", "0\t100999\n", "outside of its own ids"},
		"a set cannot be read": {"CapAmb:\t0000\n", "", "cannot be read"},
	} {
		t.Run(name, func(t *testing.T) {
			got, err := parseStatus(strings.Replace(good, c.old, c.new, 1))
			if err != nil {
				t.Fatal(err)
			}
			err = got.check(ids, false)
			if c.problem == "" && err != nil || c.problem != "" && (err == nil || !strings.Contains(err.Error(), c.problem)) {
				t.Errorf("check says %v, want %q", err, c.problem)
			}
		})
	}
}

func FuzzStatus(f *testing.F) {
	f.Add("Uid:\t1\t1\t1\t1\nSeccomp:\t2\n")
	f.Fuzz(func(t *testing.T, text string) {
		c, err := parseStatus(text)
		if err == nil && len(c.uids) != 4 {
			t.Errorf("%d ids without an error", len(c.uids))
		}
	})
}

func TestRestartsAreCountedWithinTheirWindow(t *testing.T) {
	a := &agentRun{}
	now := time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC)
	last := time.Duration(0)
	for i := range maxRestarts {
		wait, ok := a.backoff(now)
		if !ok || wait <= last {
			t.Fatalf("restart %d: wait %s, %v; want more than %s", i+1, wait, ok, last)
		}
		last = wait
	}
	if _, ok := a.backoff(now); ok {
		t.Error("one restart too many")
	}
	if _, ok := a.backoff(now.Add(restartWindow)); !ok {
		t.Error("still given up after the window")
	}
}

func TestAMissingFeatureIsRefusedUnlessItIsOptionalAndAccepted(t *testing.T) {
	says := func(s doctor.State) func(context.Context, doctor.Host) doctor.Answer {
		return func(context.Context, doctor.Host) doctor.Answer { return doctor.Answer{State: s} }
	}
	all := []doctor.Check{
		{Layer: deny.LayerAccount, Name: "there", Need: doctor.Required, Look: says(doctor.OK)},
		{Layer: deny.LayerPod, Name: "second lock", Mend: "boot another kernel", Need: doctor.Optional, Look: says(doctor.Missing)},
		{Layer: deny.LayerPod, Name: "first lock", Mend: "build another kernel", Need: doctor.Required, Look: says(doctor.Unknown)},
	}
	names := func(rs []*deny.Reason) (out []string) {
		for _, r := range rs {
			out = append(out, r.What)
		}
		return out
	}
	lost, refused := missing(t.Context(), doctor.Host{}, all, nil)
	if diff := cmp.Diff([]string{"second lock", "first lock"}, names(refused)); diff != "" || len(lost) != 0 {
		t.Errorf("accepted nothing: lost %v, refused %s", lost, diff)
	}
	if !strings.Contains(refused[0].Mend, "--accept-missing pod") || strings.Contains(refused[1].Mend, "--accept-missing") {
		t.Errorf("mends %q and %q: only what can be accepted may be offered", refused[0].Mend, refused[1].Mend)
	}
	lost, refused = missing(t.Context(), doctor.Host{}, all, []string{"pod"})
	if diff := cmp.Diff([]string{"first lock"}, names(refused)); diff != "" {
		t.Error(diff)
	}
	if diff := cmp.Diff([]string{"pod"}, lost); diff != "" {
		t.Error(diff)
	}
}

func TestStatusNamesWhatALayerLacks(t *testing.T) {
	says := func(a doctor.Answer) func(context.Context, doctor.Host) doctor.Answer {
		return func(context.Context, doctor.Host) doctor.Answer { return a }
	}
	all := []doctor.Check{
		{Layer: deny.LayerPod, Name: "Landlock ABI 6", Look: says(doctor.Answer{State: doctor.Missing, Found: "ABI 2"})},
		{Layer: deny.LayerPod, Name: "seccomp filters", Look: says(doctor.Answer{State: doctor.OK, Found: "there"})},
		{Layer: deny.LayerEgress, Name: "nftables", Look: says(doctor.Answer{State: doctor.Missing, Found: "ABI 2"})},
	}
	if got := lacking(t.Context(), doctor.Host{}, all, string(deny.LayerPod)); got != "this host lacks Landlock ABI 6 (ABI 2)" {
		t.Errorf("got %q", got)
	}
	if got := lacking(t.Context(), doctor.Host{}, all[1:2], string(deny.LayerPod)); !strings.Contains(got, "run up again") {
		t.Errorf("got %q", got)
	}
}
