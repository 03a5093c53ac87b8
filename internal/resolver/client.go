package resolver

import (
	"context"
	"errors"
	"net/netip"
)

// Client is the warden's side. It connects on demand, again after the resolver
// was restarted, and tells it the names first each time.
type Client struct{ client }

// NewClient talks to the resolver that listens on path. Nothing is opened yet.
func NewClient(path string) *Client { return newClient(path) }

// SetNames replaces everything that the resolver may ask for.
func (c *Client) SetNames(names []string) { c.setNames(names) }

// Lookup asks for the addresses of a name. ErrNotFound is an answer of DNS (no
// such name, or no address); every other error is a failure to get one.
func (c *Client) Lookup(ctx context.Context, name string) ([]netip.Addr, error) {
	return c.lookup(ctx, name)
}

// Close ends the connection.
func (c *Client) Close() error { return c.close() }

// ErrNotFound says that DNS knows no address of the name.
var ErrNotFound = errors.New("resolver: no such name or no address")
