package main

import (
	"errors"
	"fmt"
	"net/netip"
	"time"

	"golang.org/x/sys/unix"

	"bulkhead/internal/deny"
)

// between is how long dialerRebind waits until it asks for a name again.
const between = 250 * time.Millisecond

// dialerRebind asks for listed names again and again for Take milliseconds, once
// at least, and looks where each socket leads: DNS may say something else each
// time. To lead inward is what must not happen; where a name leads otherwise is
// its owner's matter.
func dialerRebind(t *trial) error {
	return t.withDialer(func(d *dialer) error {
		until := time.Now().Add(time.Duration(t.Take) * time.Millisecond)
		for _, name := range t.Names {
			for {
				over, err := t.leads(d, name)
				if err != nil || over && t.steps[len(t.steps)-1].Refusal == "" {
					return err
				}
				if over {
					break
				}
				if !time.Now().Before(until) {
					t.step("look for a way inward behind "+name, absent)
					break
				}
				time.Sleep(between)
			}
		}
		return nil
	})
}

// leads asks for a name once. It is over with a step: the dialer refused, or
// the socket leads inward.
func (t *trial) leads(d *dialer, name string) (over bool, err error) {
	fd, _, err := d.dial(name)
	var no refused
	if errors.As(err, &no) {
		if no == refused(deny.Unreachable) && t.Take > 0 {
			return false, nil // the next answer of DNS may be another
		}
		t.step("dial "+name, no)
		return true, nil
	}
	if err != nil {
		return false, err
	}
	defer unix.Close(fd)
	to, err := peer(fd)
	if err != nil {
		return false, fmt.Errorf("where the socket for %s leads: %w", name, err)
	}
	if !t.inward(to.Addr()) {
		return false, nil
	}
	t.step("dial "+name, nil)
	t.saw("%s leads to %s", name, to)
	return true, nil
}

// inward says whether an address is one of this host or of its links.
func (t *trial) inward(a netip.Addr) bool {
	a = a.Unmap()
	if a.IsLoopback() || a.IsLinkLocalUnicast() || a.IsUnspecified() {
		return true
	}
	for _, own := range t.Addresses {
		if o, err := netip.ParseAddrPort(own); err == nil && o.Addr().Unmap() == a {
			return true
		}
	}
	return false
}

// peer is where a connected socket leads.
func peer(fd int) (netip.AddrPort, error) {
	to, err := unix.Getpeername(fd)
	if err != nil {
		return netip.AddrPort{}, err
	}
	switch a := to.(type) {
	case *unix.SockaddrInet4:
		return netip.AddrPortFrom(netip.AddrFrom4(a.Addr), uint16(a.Port)), nil // #nosec G115 -- a port
	case *unix.SockaddrInet6:
		return netip.AddrPortFrom(netip.AddrFrom16(a.Addr), uint16(a.Port)), nil // #nosec G115 -- as above
	}
	return netip.AddrPort{}, fmt.Errorf("it is no socket of the internet's families: %T", to)
}
