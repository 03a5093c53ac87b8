package nft

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"net/netip"
	"os"
	"slices"
	"strings"
	"time"

	"github.com/google/nftables"
)

// maxComment keeps an element's comment within the kernel's 256 bytes of user
// data (NFT_USERDATA_MAXLEN) with its header. A longer name is not kept there.
const maxComment = 200

// maxPins bounds what one agent can make the kernel hold.
const maxPins = 4096

// Pin lets the account's dialer connect to addrs for ttl, and renews their
// flows. destination ("name:port") is kept with the element, so that a later
// policy can tell what it was for, also after this process was replaced.
func (t *Table) Pin(account, destination string, addrs []netip.AddrPort, ttl time.Duration) error {
	return t.PinFor(account, destination, addrs, ttl, max(FlowTimeout, ttl))
}

// PinFor is Pin with flows that end after flow, for destinations that are
// allowed for a while: they close in the kernel though nobody is left to
// revoke them. An address that another destination needs for longer keeps its
// time.
func (t *Table) PinFor(account, destination string, addrs []netip.AddrPort, ttl, flow time.Duration) error {
	t.mu.Lock()
	defer t.mu.Unlock()
	if _, ok := t.binding(account); !ok {
		return fmt.Errorf("nft: pin %s for %s: no rules were applied for this account", destination, account)
	}
	now := time.Now()
	live := t.live[account]
	if len(live)+len(addrs) > maxPins {
		t.expire(now)
		if live = t.live[account]; len(live)+len(addrs) > maxPins {
			return fmt.Errorf("nft: pin %s for %s: it holds %d pins already", destination, account, len(live))
		}
	}
	if live == nil {
		live = map[netip.AddrPort]*Entry{}
		t.live[account] = live
	}
	clean := make([]netip.AddrPort, len(addrs))
	elements := make([]element, len(addrs))
	for i, a := range addrs {
		a = netip.AddrPortFrom(a.Addr().Unmap().WithZone(""), a.Port())
		clean[i] = a
		e := live[a]
		if e == nil {
			e = &Entry{Address: a}
			live[a] = e
		}
		if !slices.Contains(e.Destinations, destination) {
			e.Destinations = append(e.Destinations, destination)
		}
		shared := len(e.Destinations) > 1
		e.Until, e.FlowUntil = latest(now.Add(ttl), e.Until, shared), latest(now.Add(flow), e.FlowUntil, shared)
		elements[i] = element{a, e.Until.Sub(now), e.FlowUntil.Sub(now)}
	}
	err := t.renew(account, destination, elements)
	if errors.Is(err, os.ErrNotExist) { // somebody took the table away: put it back, with these pins
		err = t.applyLocked(context.Background(), t.want)
	}
	if err != nil {
		for _, a := range clean {
			delete(live, a)
		}
		return fmt.Errorf("nft: pin %s for %s: %w", destination, account, err)
	}
	return nil
}

// element is an address with the time that its pin and its flow have left.
type element struct {
	netip.AddrPort
	pin, flow time.Duration
}

// latest is when, or former when that is later and somebody else needs it.
func latest(when, former time.Time, shared bool) time.Time {
	if shared && former.After(when) {
		return former
	}
	return when
}

// renew sets the timeouts of elements. Before Linux 6.12 adding an element
// that exists leaves its timeout as it was, and deleting one that does not
// exist fails: add, delete, add in one batch works everywhere.
func (t *Table) renew(account, destination string, addrs []element) error {
	table := newTable()
	comment := ""
	if len(destination) <= maxComment {
		comment = destination
	}
	for _, v6 := range []bool{false, true} {
		var pins, flows []nftables.SetElement
		for _, a := range addrs {
			if a.Addr().Is6() == v6 {
				pins = append(pins, nftables.SetElement{Key: elementKey(a.AddrPort), Timeout: a.pin, Comment: comment})
				flows = append(flows, nftables.SetElement{Key: elementKey(a.AddrPort), Timeout: a.flow, Comment: comment})
			}
		}
		if len(pins) == 0 {
			continue
		}
		for set, elements := range map[*nftables.Set][]nftables.SetElement{
			pinSet(table, account, v6): pins, flowSet(table, account, v6): flows,
		} {
			if err := errors.Join(
				t.conn.SetAddElements(set, elements),
				t.conn.SetDeleteElements(set, elements),
				t.conn.SetAddElements(set, elements),
			); err != nil {
				return err
			}
		}
	}
	return t.conn.Flush()
}

// Unpin takes the destination from its addresses. An address that no other
// destination shares loses its pin and its flow, which ends its connections at
// their next packet.
func (t *Table) Unpin(account, destination string) error {
	t.mu.Lock()
	defer t.mu.Unlock()
	table := newTable()
	var gone []netip.AddrPort
	for a, e := range t.live[account] {
		n := len(e.Destinations)
		e.Destinations = slices.DeleteFunc(e.Destinations, func(d string) bool { return d == destination })
		if n > 0 && len(e.Destinations) == 0 || n == 0 && destination == "" {
			gone = append(gone, a)
		}
	}
	for _, a := range gone {
		delete(t.live[account], a)
		element := []nftables.SetElement{{Key: elementKey(a), Timeout: time.Second}}
		for _, set := range []*nftables.Set{pinSet(table, account, a.Addr().Is6()), flowSet(table, account, a.Addr().Is6())} {
			// Added first, so that an element which just expired does not fail the batch.
			if err := errors.Join(t.conn.SetAddElements(set, element), t.conn.SetDeleteElements(set, element)); err != nil {
				return fmt.Errorf("nft: unpin %s of %s: %w", destination, account, err)
			}
		}
	}
	if err := t.conn.Flush(); err != nil && !errors.Is(err, os.ErrNotExist) {
		return fmt.Errorf("nft: unpin %s of %s: %w", destination, account, err)
	}
	return nil
}

// Pins lists the account's live pins and flows.
func (t *Table) Pins(account string) []Entry {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.expire(time.Now())
	var out []Entry
	for _, e := range t.live[account] {
		c := *e
		c.Destinations = slices.Clone(e.Destinations)
		out = append(out, c)
	}
	slices.SortFunc(out, func(a, b Entry) int { return a.Address.Compare(b.Address) })
	return out
}

// expire forgets entries whose flow has ended in the kernel.
func (t *Table) expire(now time.Time) {
	for _, live := range t.live {
		for a, e := range live {
			if !e.FlowUntil.After(now) {
				delete(live, a)
			}
		}
	}
}

// elements gives the account's entries with the time that they have left.
func (t *Table) elements(account string, v6 bool, now time.Time) (pins, flows []nftables.SetElement) {
	for a, e := range t.live[account] {
		if a.Addr().Is6() != v6 {
			continue
		}
		comment := ""
		if n := len(e.Destinations); n > 0 && len(e.Destinations[n-1]) <= maxComment {
			comment = e.Destinations[n-1]
		}
		if left := e.Until.Sub(now); left > time.Millisecond {
			pins = append(pins, nftables.SetElement{Key: elementKey(a), Timeout: left, Comment: comment})
		}
		if left := e.FlowUntil.Sub(now); left > time.Millisecond {
			flows = append(flows, nftables.SetElement{Key: elementKey(a), Timeout: left, Comment: comment})
		}
	}
	return pins, flows
}

// elementKey is address and port, each padded to whole 32-bit registers.
func elementKey(a netip.AddrPort) []byte {
	return append(binary.BigEndian.AppendUint16(a.Addr().AsSlice(), a.Port()), 0, 0)
}

func keyAddress(key []byte) (netip.AddrPort, bool) {
	if len(key) != 8 && len(key) != 20 {
		return netip.AddrPort{}, false
	}
	addr, ok := netip.AddrFromSlice(key[:len(key)-4])
	return netip.AddrPortFrom(addr, binary.BigEndian.Uint16(key[len(key)-4:])), ok
}

// adopt reads what a former process of ours left in the kernel.
func (t *Table) adopt() error {
	tables, err := t.conn.ListTablesOfFamily(nftables.TableFamilyINet)
	if err != nil {
		return fmt.Errorf("nft: list tables: %w", err)
	}
	if !slices.ContainsFunc(tables, func(x *nftables.Table) bool { return x.Name == Name }) {
		return nil
	}
	sets, err := t.conn.GetSets(newTable())
	if err != nil {
		return fmt.Errorf("nft: list sets of %s: %w", Name, err)
	}
	now := time.Now()
	for _, set := range sets {
		account, kind, ok := strings.Cut(set.Name, ".")
		if !ok {
			continue
		}
		elements, err := t.conn.GetSetElements(set)
		if err != nil {
			return fmt.Errorf("nft: read set %s: %w", set.Name, err)
		}
		for _, el := range elements {
			a, ok := keyAddress(el.Key)
			if !ok || el.Expires <= 0 {
				continue
			}
			if t.live[account] == nil {
				t.live[account] = map[netip.AddrPort]*Entry{}
			}
			e := t.live[account][a]
			if e == nil {
				e = &Entry{Address: a}
				t.live[account][a] = e
			}
			if el.Comment != "" && !slices.Contains(e.Destinations, el.Comment) {
				e.Destinations = append(e.Destinations, el.Comment)
			}
			if strings.HasPrefix(kind, "pins") {
				e.Until = now.Add(el.Expires)
			} else {
				e.FlowUntil = now.Add(el.Expires)
			}
		}
	}
	return nil
}

func (t *Table) binding(account string) (Binding, bool) {
	i := slices.IndexFunc(t.want.Agents, func(b Binding) bool { return b.Account == account })
	if i < 0 || !t.applied {
		return Binding{}, false
	}
	return t.want.Agents[i], true
}
