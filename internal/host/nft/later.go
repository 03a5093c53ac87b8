package nft

import (
	"context"
	"errors"
	"net/netip"
	"time"
)

var errSoon = errors.New("nft: being written")

type options struct{ netns int }
type state struct{}

func open([]Option) (*Table, error)                                      { return nil, errSoon }
func (*Table) close() error                                              { return errSoon }
func (*Table) apply(context.Context, Want) error                         { return errSoon }
func (*Table) restore(context.Context) error                             { return errSoon }
func (*Table) pin(string, string, []netip.AddrPort, time.Duration) error { return errSoon }
func (*Table) unpin(string, string) error                                { return errSoon }
func (*Table) pins(string) []Entry                                       { return nil }
func (*Table) inspect(string) (State, error)                             { return State{}, errSoon }
func (*Table) removeAgent(context.Context, string) error                 { return errSoon }
func (*Table) destroy() error                                            { return errSoon }
func (*Table) watch(context.Context, chan<- struct{}, func()) error      { return errSoon }
