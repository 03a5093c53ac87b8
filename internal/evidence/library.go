package evidence

import (
	"bulkhead/internal/deny"
	"bulkhead/internal/engine"
)

// Described is one attack as the report explains it, so that a row can be
// understood without this program.
type Described struct {
	ID         string             `json:"id"`
	Title      string             `json:"title"`
	Tries      string             `json:"tries"`
	Layer      deny.Layer         `json:"layer"` // that must refuse it
	From       []Position         `json:"from"`
	Witness    []string           `json:"witness"`    // the refusals that count as a denial
	Mechanisms []engine.Mechanism `json:"mechanisms"` // each of which refuses it by itself, as its control shows
	Reference  string             `json:"reference"`  // the attack in the world: a CVE, a kernel document, an RFC
	// Uncontrolled says why no control can be built: that it is refused is seen,
	// that it would succeed otherwise is not.
	Uncontrolled string `json:"uncontrolled,omitempty"`
}

// describe is the report's library of the attacks that were made.
func describe(attacks []Attack) []Described {
	out := []Described{}
	for _, a := range attacks {
		d := Described{
			ID: a.ID, Title: a.Title, Tries: a.Tries, Layer: a.Layer, From: a.From, Witness: a.Witness(),
			Mechanisms: []engine.Mechanism{}, Reference: a.Reference, Uncontrolled: a.Uncontrolled,
		}
		for _, c := range a.Controls {
			d.Mechanisms = append(d.Mechanisms, c.Mechanism)
		}
		out = append(out, d)
	}
	return out
}
