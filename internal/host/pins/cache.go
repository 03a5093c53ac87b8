package pins

import (
	"context"
	"errors"
	"net/netip"
	"sync"
	"time"

	"bulkhead/internal/resolver"
)

// maxStale is how old a last good answer may be while DNS fails. After a day
// an address may well belong to somebody else.
const maxStale = 24 * time.Hour

// maxCached bounds the cache over all agents.
const maxCached = 10_000

// cache keeps the last good answer for each name.
type cache struct {
	resolver Lookuper
	fresh    time.Duration

	mu   sync.Mutex
	good map[string]good
}

type good struct {
	addrs []netip.Addr
	at    time.Time
}

type answer struct {
	addrs []netip.Addr
	stale bool
	age   time.Duration
}

func newCache(r Lookuper, ttl time.Duration) *cache {
	// Half of a pin's life: a dialer that renews its pin just in time sees an
	// answer that is at most one and a half pins old.
	return &cache{resolver: r, fresh: ttl / 2, good: map[string]good{}}
}

// lookup gives a fresh answer, or the last good one while DNS fails. That a
// name does not exist is an answer and ends the last good one.
func (c *cache) lookup(ctx context.Context, name string) (answer, error) {
	c.mu.Lock()
	last, ok := c.good[name]
	c.mu.Unlock()
	if ok && time.Since(last.at) < c.fresh {
		return answer{addrs: last.addrs}, nil
	}
	addrs, err := c.resolver.Lookup(ctx, name)
	now := time.Now()
	c.mu.Lock()
	defer c.mu.Unlock()
	switch {
	case err == nil:
		if len(c.good) >= maxCached {
			for n, g := range c.good {
				if now.Sub(g.at) > c.fresh || len(c.good) >= maxCached {
					delete(c.good, n)
				}
			}
		}
		c.good[name] = good{addrs, now}
		return answer{addrs: addrs}, nil
	case errors.Is(err, resolver.ErrNotFound):
		delete(c.good, name)
		return answer{}, err
	case ok && now.Sub(last.at) < maxStale:
		return answer{addrs: last.addrs, stale: true, age: now.Sub(last.at)}, nil
	}
	return answer{}, err
}
