package confine

import (
	"errors"
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
