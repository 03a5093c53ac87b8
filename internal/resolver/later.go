package resolver

import (
	"context"
	"errors"
	"net/netip"
)

type client struct{}

func newClient(string) *Client    { return &Client{} }
func (*Client) setNames([]string) {}
func (*Client) close() error      { return nil }
func (*Client) lookup(context.Context, string) ([]netip.Addr, error) {
	return nil, errors.New("being written")
}
