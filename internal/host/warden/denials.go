package warden

import (
	"sync"
	"time"
)

// Denials of pins go to the warden's own log, which nobody rotates and which
// lies on the disk of everybody: an agent may ask for endless names.
const (
	denialWindow = time.Minute
	maxDenials   = 30 // lines of one agent in a window
)

// denials says which denials are written down. Counting all of them is for
// pins.Counters.
type denials struct {
	mu     sync.Mutex
	agents map[string]*denialCount
}

type denialCount struct {
	since   time.Time
	written int
	left    int // out in this window
}

// next says whether the account's denial is written down, and how many of the
// last window were not.
func (d *denials) next(account string, now time.Time) (write bool, left int) {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.agents == nil {
		d.agents = map[string]*denialCount{}
	}
	c := d.agents[account]
	if c == nil || now.Sub(c.since) >= denialWindow {
		if c != nil {
			left = c.left
		}
		c = &denialCount{since: now}
		d.agents[account] = c
	}
	if c.written >= maxDenials {
		c.left++
		return false, 0
	}
	c.written++
	return true, left
}
