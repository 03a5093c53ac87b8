package confine

import (
	"errors"
	"strings"
	"testing"

	"bulkhead/internal/deny"
	"bulkhead/internal/engine"
)

func TestMissingLandlockIsRefusedUnlessAccepted(t *testing.T) {
	for _, c := range []struct {
		abi      int
		accepted bool
		ok       bool
	}{{0, false, false}, {5, false, false}, {6, false, true}, {7, false, true}, {0, true, true}, {3, true, true}} {
		err := checkABI(c.abi, c.accepted)
		if (err == nil) != c.ok {
			t.Errorf("ABI %d accepted %v: %v", c.abi, c.accepted, err)
		}
		var r *deny.Reason
		if err != nil && (!errors.As(err, &r) || r.Code != deny.MissingFeature || r.Layer != deny.LayerPod || r.Mend == "") {
			t.Errorf("ABI %d: %v is no denial with a mend", c.abi, err)
		}
	}
}

func TestRightsNeverExceedTheABI(t *testing.T) {
	for abi := 1; abi <= WantedABI; abi++ {
		r := rightsOf(abi, engine.RoleGateway)
		if (r.net != 0) != (abi >= 4) || (r.scope != 0) != (abi >= 6) || (r.refer != 0) != (abi >= 2) || (r.truncate != 0) != (abi >= 3) || (r.ioctl != 0) != (abi >= 5) {
			t.Errorf("ABI %d: %+v", abi, r)
		}
	}
	if rightsOf(6, engine.RoleRuntime).net != 0 {
		t.Error("the runtime may not connect to its own loopback")
	}
}

const status = "Name:\tx\nCapInh:\t0000000000000000\nCapPrm:\t0000000000000000\nCapEff:\t0000000000000000\nCapBnd:\t0000000000000000\nCapAmb:\t0000000000000000\nNoNewPrivs:\t1\nSeccomp:\t2\nSeccomp_filters:\t1\n"

func TestVerifySeesWhatIsMissing(t *testing.T) {
	p := Profile{DropCaps: true, NoNewPrivs: true, Seccomp: true}
	for change, want := range map[string]string{
		"": "", "CapBnd:\t0000000000000001": "capabilities", "NoNewPrivs:\t0": "no_new_privs", "Seccomp:\t0": "seccomp", "Seccomp:\t1": "seccomp",
	} {
		text := status
		if change != "" {
			key, _, _ := strings.Cut(change, ":")
			var lines []string
			for l := range strings.Lines(status) {
				if strings.HasPrefix(l, key+":") {
					l = change + "\n"
				}
				lines = append(lines, l)
			}
			text = strings.Join(lines, "")
		}
		s, err := ParseStatus(text)
		if err != nil {
			t.Fatal(err)
		}
		err = p.Verify(s)
		if (err == nil) != (want == "") || err != nil && !strings.Contains(err.Error(), want) {
			t.Errorf("%q: %v", change, err)
		}
	}
	if _, err := ParseStatus(strings.Replace(status, "CapBnd", "CapXyz", 1)); err == nil {
		t.Error("a status without CapBnd reads as if it were zero")
	}
}

func FuzzParseStatus(f *testing.F) {
	f.Add(status)
	f.Add("CapInh:\nSeccomp:\tx\n")
	f.Fuzz(func(t *testing.T, text string) {
		s, err := ParseStatus(text)
		if err == nil && strings.Count(text, "\n") < 6 {
			t.Errorf("%+v from %q", s, text)
		}
	})
}
