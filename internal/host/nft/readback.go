package nft

import (
	"fmt"
	"net/netip"
	"slices"
)

// ReadBack asks the kernel which of addrs the account's dialer may connect to
// at this moment, and gives those that it may not. Nothing is taken from
// memory.
func (t *Table) ReadBack(account string, addrs []netip.AddrPort) (missing []netip.AddrPort, err error) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if _, ok := t.binding(account); !ok {
		return nil, fmt.Errorf("nft: read back %s: no rules were applied for this account", account)
	}
	var have []netip.AddrPort
	for _, v6 := range []bool{false, true} {
		elements, err := t.elementsOf(pinSet(newTable(), account, v6))
		if err != nil {
			return nil, err
		}
		for _, e := range elements {
			if a, ok := keyAddress(e.Key); ok {
				have = append(have, a)
			}
		}
	}
	for _, a := range addrs {
		if !slices.Contains(have, netip.AddrPortFrom(a.Addr().Unmap(), a.Port())) {
			missing = append(missing, a)
		}
	}
	return missing, nil
}
