package warden

import (
	"context"
	"fmt"
	"slices"
	"strings"

	"bulkhead/internal/deny"
	"bulkhead/internal/host/doctor"
)

// lacks says whether an answer leaves a layer without what it needs. What could
// not be read counts as missing.
func lacks(a doctor.Answer) bool { return a.State != doctor.OK && a.State != doctor.Weak }

// missing asks the host for what layers need (doctor.Features) and returns the
// layers that are lost with the operator's agreement, and a reason for each
// feature that is missing without.
func missing(ctx context.Context, host doctor.Host, features []doctor.Check, accepted []string) (lost []string, refused []*deny.Reason) {
	for _, f := range features {
		a := f.Look(ctx, host)
		if !lacks(a) {
			continue
		}
		optional := f.Need == doctor.Optional
		if optional && slices.Contains(accepted, string(f.Layer)) {
			if !slices.Contains(lost, string(f.Layer)) {
				lost = append(lost, string(f.Layer))
			}
			continue
		}
		mend := f.Mend
		if a.Mend != "" {
			mend = a.Mend
		}
		if optional {
			mend += "; or go on with a weaker layer: --accept-missing " + string(f.Layer)
		}
		refused = append(refused, &deny.Reason{
			Layer: f.Layer, Code: deny.MissingFeature, What: f.Name,
			Why: fmt.Sprintf("this host lacks it (%s: %s), but %s", a.Where, a.Found, f.Why), Mend: mend,
		})
	}
	return lost, refused
}

// notAcceptable names what was accepted to be missing and is no layer that may
// be: a slip of the pen must not pass for consent.
func notAcceptable(accepted []string, features []doctor.Check) (faults []string) {
	var may []string
	for _, f := range features {
		if f.Need == doctor.Optional && !slices.Contains(may, string(f.Layer)) {
			may = append(may, string(f.Layer))
		}
	}
	for _, a := range accepted {
		if !slices.Contains(may, a) {
			faults = append(faults, fmt.Sprintf("--accept-missing %q: no layer of this name can be missing; those that can are %s", a, strings.Join(may, ", ")))
		}
	}
	return faults
}

// lacking names what of a layer this host does not have now.
func lacking(ctx context.Context, host doctor.Host, features []doctor.Check, layer string) string {
	var out []string
	for _, f := range features {
		if string(f.Layer) != layer {
			continue
		}
		if a := f.Look(ctx, host); lacks(a) {
			out = append(out, fmt.Sprintf("%s (%s)", f.Name, a.Found))
		}
	}
	if len(out) == 0 {
		return "this host has all of it by now (run up again without --accept-missing)"
	}
	return "this host lacks " + strings.Join(out, ", ")
}
