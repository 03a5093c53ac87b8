package engine

import (
	"testing"

	"bulkhead/internal/deny"
)

func TestWithoutTakesExactlyOneLayerAway(t *testing.T) {
	base := Spec{Name: "runtime", Role: RoleRuntime}
	seen := map[Mechanism]bool{}
	for _, l := range []deny.Layer{deny.LayerAccount, deny.LayerPod, deny.LayerEgress, deny.LayerQuota, deny.LayerTools} {
		s := base.Without(l)
		if !s.Decoy {
			t.Errorf("%s: a Spec without a layer is no decoy: engines would start it as an agent", l)
		}
		for _, m := range Mechanisms() {
			if off := !s.Has(m); off != (m.Layer() == l) {
				t.Errorf("%s: %s off is %t", l, m, off)
			}
			seen[m] = seen[m] || !s.Has(m)
		}
	}
	for _, m := range Mechanisms() {
		if !seen[m] {
			t.Errorf("%s belongs to no layer", m)
		}
	}
	if base.Decoy || len(base.Off) > 0 {
		t.Error("the original was changed")
	}
}
