package engine

import (
	"slices"

	"bulkhead/internal/deny"
)

// Layer says which layer of the onion the mechanism belongs to.
func (m Mechanism) Layer() deny.Layer {
	switch m {
	case MechUser:
		return deny.LayerAccount
	case MechNetNS, MechNftables, MechGuard:
		return deny.LayerEgress
	case MechGateway:
		return deny.LayerTools
	case MechQuota:
		return deny.LayerQuota
	}
	return deny.LayerPod
}

// Without gives the same container as a decoy in which every mechanism of one
// layer, and no other, is off. Only evidence starts decoys.
func (s Spec) Without(l deny.Layer) Spec {
	s.Decoy = true
	s.Off = slices.Clone(s.Off)
	for _, m := range Mechanisms() {
		if m.Layer() == l && !slices.Contains(s.Off, m) {
			s.Off = append(s.Off, m)
		}
	}
	return s
}
