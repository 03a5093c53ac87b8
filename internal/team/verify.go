package team

import (
	"time"
)

// What happens when something that was proven does not hold any more.
const (
	DriftAlert = "alert" // it is said: log, watch, metrics
	DriftFence = "fence" // and the agents that it is about are fenced, until an operator releases them
)

// Verify is how a running team is checked again.
type Verify struct {
	Every    time.Duration // zero: never by the clock
	OnChange bool          // after every up and after changes of the host's network
	OnDrift  string        // DriftAlert or DriftFence
}

// DefaultVerify is what a manifest without the key means.
func DefaultVerify() Verify { return Verify{Every: time.Hour, OnChange: true, OnDrift: DriftAlert} }

// Bounds of every. A check of seven agents takes a third of a second of one core, so
// once a minute is half a percent of it.
const minEvery, maxEvery = time.Minute, 7 * 24 * time.Hour

const never = "never"

// verify reads how the team is checked again.
func (r *reader) verify(p place) Verify {
	v := DefaultVerify()
	if p.node == nil {
		return v
	}
	f := r.fields(p, "every, onChange and onDrift, like {every: 1h, onDrift: alert}", verifyKeys...)
	if s, ok := r.text(f["every"], "a time like 1h, or "+never); ok {
		d, err := time.ParseDuration(s)
		switch {
		case s == never:
			v.Every = 0
		case err != nil || d < minEvery || d > maxEvery:
			r.fault(f["every"], "write a time from 1m to 168h, like 1h, or "+never, "%q is not a time in that range", clip(s))
		default:
			v.Every = d
		}
	}
	if f["onChange"].node != nil {
		v.OnChange = r.choice(f["onChange"], truths...) == "true"
	}
	if f["onDrift"].node != nil {
		v.OnDrift = r.choice(f["onDrift"], drifts...)
	}
	return v
}
