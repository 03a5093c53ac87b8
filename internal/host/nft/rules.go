package nft

import (
	"cmp"
	"encoding/binary"
	"net/netip"
	"slices"
	"time"

	"github.com/google/nftables"
	"github.com/google/nftables/binaryutil"
	"github.com/google/nftables/expr"
	"golang.org/x/sys/unix"
)

// Names inside the table that are not an account's. None can be an account:
// those start with "bh-" (layout.Account), and Want.check refuses these.
const (
	baseChain     = "output"
	resolverChain = "resolver"
	serversChain  = "servers"
	dialersSet    = "dialers"
	refusedSet    = "refused"
)

// chunk bounds how many elements travel in one netlink message, whose
// attributes are limited to 64 KiB.
const chunk = 256

var (
	pin4Type = nftables.MustConcatSetType(nftables.TypeIPAddr, nftables.TypeInetService)
	pin6Type = nftables.MustConcatSetType(nftables.TypeIP6Addr, nftables.TypeInetService)
)

func newTable() *nftables.Table {
	return &nftables.Table{Name: Name, Family: nftables.TableFamilyINet}
}

// The sets of one account. Names are at most 32+7 characters.
func pinSet(t *nftables.Table, account string, v6 bool) *nftables.Set {
	return elementSet(t, account+".pins", v6)
}

func flowSet(t *nftables.Table, account string, v6 bool) *nftables.Set {
	return elementSet(t, account+".flows", v6)
}

func elementSet(t *nftables.Table, name string, v6 bool) *nftables.Set {
	s := &nftables.Set{Table: t, Name: name + "4", KeyType: pin4Type, Concatenation: true, HasTimeout: true}
	if v6 {
		s.Name, s.KeyType = name+"6", pin6Type
	}
	return s
}

// rule is one rule with the chain that holds it.
type rule struct {
	chain string
	exprs []expr.Any
}

// queue puts the whole table into conn's batch: the old one goes and the new
// one comes in one transaction, so no packet meets neither.
func (t *Table) queue(want Want) {
	table := newTable()
	t.conn.AddTable(table) // so that the deletion cannot miss
	t.conn.DelTable(table)
	t.conn.AddTable(table)
	accept := nftables.ChainPolicyAccept
	t.conn.AddChain(&nftables.Chain{
		Name: baseChain, Table: table, Type: nftables.ChainTypeFilter,
		Hooknum: nftables.ChainHookOutput, Priority: nftables.ChainPriorityFilter, Policy: &accept,
	})
	if want.Resolver != nil {
		t.conn.AddChain(&nftables.Chain{Name: resolverChain, Table: table})
		for _, v6 := range []bool{false, true} {
			t.addSet(resolverServers(table, v6), serverElements(want.Resolver, v6))
		}
	}
	if len(want.Servers) > 0 {
		t.conn.AddChain(&nftables.Chain{Name: serversChain, Table: table})
	}
	now := time.Now()
	for _, b := range want.Agents {
		t.conn.AddChain(&nftables.Chain{Name: b.Account, Table: table})
		for _, v6 := range []bool{false, true} {
			pins, flows := t.elements(b.Account, v6, now)
			t.addSet(pinSet(table, b.Account, v6), pins)
			t.addSet(flowSet(table, b.Account, v6), flows)
		}
	}
	t.addSet(dialerMap(table), dialerElements(want))
	t.addSet(refusedIDs(table), rangeElements(want.ranges()))
	for _, r := range want.rules() {
		t.conn.AddRule(&nftables.Rule{Table: table, Chain: &nftables.Chain{Name: r.chain, Table: table}, Exprs: r.exprs})
	}
}

// addSet queues a set and its elements in messages of bounded size. Errors of
// the library here are errors of encoding, which Flush reports again.
func (t *Table) addSet(s *nftables.Set, elements []nftables.SetElement) {
	_ = t.conn.AddSet(s, nil)
	for part := range slices.Chunk(elements, chunk) {
		_ = t.conn.SetAddElements(s, part)
	}
}

func dialerMap(t *nftables.Table) *nftables.Set {
	return &nftables.Set{Table: t, Name: dialersSet, IsMap: true, KeyType: nftables.TypeUID, DataType: nftables.TypeVerdict, KeyByteOrder: binaryutil.NativeEndian}
}

func dialerElements(want Want) []nftables.SetElement {
	var out []nftables.SetElement
	add := func(id uint32, chain string) {
		out = append(out, nftables.SetElement{
			Key: binaryutil.NativeEndian.PutUint32(id), VerdictData: &expr.Verdict{Kind: expr.VerdictGoto, Chain: chain},
		})
	}
	for _, b := range want.Agents {
		if !b.Fenced {
			add(b.IDs.Dialer, b.Account)
		}
	}
	if want.Resolver != nil {
		add(want.Resolver.ID, resolverChain)
	}
	for _, s := range want.Servers {
		add(s.ID, serversChain)
	}
	return out
}

// refusedIDs is an interval set; those compare bytes from the left, so its
// keys are big-endian and the rule converts (as the nft tool does).
func refusedIDs(t *nftables.Table) *nftables.Set {
	return &nftables.Set{Table: t, Name: refusedSet, Interval: true, KeyType: nftables.TypeUID, KeyByteOrder: binaryutil.BigEndian}
}

// ranges gives every id that gets nothing, sorted and merged.
func (w Want) ranges() []Range {
	all := slices.Clone(w.Refused)
	for _, b := range w.Agents {
		all = append(all, Range{b.IDs.Account, b.IDs.Account}, Range{b.IDs.Base, b.IDs.Last()})
		if b.Fenced {
			all = append(all, Range{b.IDs.Dialer, b.IDs.Dialer})
		}
	}
	slices.SortFunc(all, func(a, b Range) int { return cmp.Compare(a.First, b.First) })
	var out []Range
	for _, r := range all {
		if n := len(out); n > 0 && uint64(r.First) <= uint64(out[n-1].Last)+1 {
			out[n-1].Last = max(out[n-1].Last, r.Last)
			continue
		}
		out = append(out, r)
	}
	return out
}

func rangeElements(ranges []Range) []nftables.SetElement {
	var out []nftables.SetElement
	for _, r := range ranges {
		out = append(out, nftables.SetElement{Key: binary.BigEndian.AppendUint32(nil, r.First)})
		if r.Last < ^uint32(0) { // an interval without an end reaches the last id
			out = append(out, nftables.SetElement{Key: binary.BigEndian.AppendUint32(nil, r.Last+1), IntervalEnd: true})
		}
	}
	return out
}

func resolverServers(t *nftables.Table, v6 bool) *nftables.Set {
	s := &nftables.Set{Table: t, Name: "servers4", KeyType: nftables.TypeIPAddr}
	if v6 {
		s.Name, s.KeyType = "servers6", nftables.TypeIP6Addr
	}
	return s
}

func serverElements(r *Resolver, v6 bool) []nftables.SetElement {
	var out []nftables.SetElement
	seen := map[netip.Addr]bool{}
	for _, a := range r.Servers {
		a = a.Unmap().WithZone("")
		if a.Is6() == v6 && a.IsValid() && !seen[a] {
			seen[a] = true
			out = append(out, nftables.SetElement{Key: a.AsSlice()})
		}
	}
	return out
}

// rules lists every rule in order.
func (w Want) rules() []rule {
	out := []rule{
		{baseChain, []expr.Any{
			&expr.Meta{Key: expr.MetaKeySKUID, Register: 1},
			&expr.Lookup{SourceRegister: 1, SetName: dialersSet, IsDestRegSet: true},
		}},
		{baseChain, slices.Concat(protocol(unix.IPPROTO_TCP), refusedID(), reset())},
		{baseChain, slices.Concat(refusedID(), refuse())},
	}
	if w.Resolver != nil {
		for _, v6 := range []bool{false, true} {
			for _, proto := range []byte{unix.IPPROTO_UDP, unix.IPPROTO_TCP} {
				out = append(out, rule{resolverChain, slices.Concat(
					family(v6), protocol(proto), destination(v6, 1),
					[]expr.Any{&expr.Lookup{SourceRegister: 1, SetName: resolverServers(nil, v6).Name}},
					destinationPort(1), []expr.Any{
						&expr.Cmp{Op: expr.CmpOpEq, Register: 1, Data: []byte{0, 53}},
						&expr.Counter{}, &expr.Verdict{Kind: expr.VerdictAccept},
					},
				)})
			}
		}
		out = append(out, rule{resolverChain, refuse()})
	}
	if len(w.Servers) > 0 {
		for _, s := range w.Servers {
			for _, at := range s.Listen {
				out = append(out, rule{serversChain, answers(s.ID, at)})
			}
		}
		out = append(out, rule{serversChain, slices.Concat(protocol(unix.IPPROTO_TCP), reset())}, rule{serversChain, refuse()})
	}
	for _, b := range w.Agents {
		for _, v6 := range []bool{false, true} {
			out = append(
				out,
				rule{b.Account, match(v6, expr.CmpOpNeq, pinSet(nil, b.Account, v6).Name)},
				rule{b.Account, match(v6, expr.CmpOpEq, flowSet(nil, b.Account, v6).Name)},
			)
		}
		out = append(
			out,
			rule{b.Account, slices.Concat(protocol(unix.IPPROTO_TCP), reset())},
			rule{b.Account, refuse()},
		)
	}
	return out
}

// answers accepts what a server says on connections that it accepted at one
// address: TCP from there, without SYN, so that it opens none from there. (What
// answers a SYN has the id of who made the listening socket.)
func answers(id uint32, at netip.AddrPort) []expr.Any {
	v6 := at.Addr().Is6()
	offset, length := uint32(12), uint32(4) // RFC 791, 3.1: source
	if v6 {
		offset, length = 8, 16 // RFC 8200, 3
	}
	return slices.Concat(
		[]expr.Any{
			&expr.Meta{Key: expr.MetaKeySKUID, Register: 1},
			&expr.Cmp{Op: expr.CmpOpEq, Register: 1, Data: binaryutil.NativeEndian.PutUint32(id)},
		},
		family(v6), protocol(unix.IPPROTO_TCP), []expr.Any{
			&expr.Payload{DestRegister: 1, Base: expr.PayloadBaseTransportHeader, Offset: 13, Len: 1},
			&expr.Bitwise{SourceRegister: 1, DestRegister: 1, Len: 1, Mask: []byte{0x02}, Xor: []byte{0}},
			&expr.Cmp{Op: expr.CmpOpEq, Register: 1, Data: []byte{0}},
			&expr.Payload{DestRegister: 1, Base: expr.PayloadBaseNetworkHeader, Offset: offset, Len: length},
			&expr.Cmp{Op: expr.CmpOpEq, Register: 1, Data: at.Addr().AsSlice()},
			&expr.Payload{DestRegister: 1, Base: expr.PayloadBaseTransportHeader, Offset: 0, Len: 2},
			&expr.Cmp{Op: expr.CmpOpEq, Register: 1, Data: binary.BigEndian.AppendUint16(nil, at.Port())},
			&expr.Counter{}, &expr.Verdict{Kind: expr.VerdictAccept},
		},
	)
}

// match accepts TCP packets towards an element of set: those with SYN (syn is
// "not equal zero") or those without ("equal").
func match(v6 bool, syn expr.CmpOp, set string) []expr.Any {
	return slices.Concat(family(v6), protocol(unix.IPPROTO_TCP), []expr.Any{
		&expr.Payload{DestRegister: 1, Base: expr.PayloadBaseTransportHeader, Offset: 13, Len: 1}, // RFC 9293, 3.1: flags
		&expr.Bitwise{SourceRegister: 1, DestRegister: 1, Len: 1, Mask: []byte{0x02}, Xor: []byte{0}},
		&expr.Cmp{Op: syn, Register: 1, Data: []byte{0}},
	}, destination(v6, 1), destinationPort(portRegister(v6)), []expr.Any{
		&expr.Lookup{SourceRegister: 1, SetName: set}, &expr.Counter{}, &expr.Verdict{Kind: expr.VerdictAccept},
	})
}

// portRegister is the 32-bit register that follows the address, which starts
// at register 1 (the same storage as NFT_REG32_00).
func portRegister(v6 bool) uint32 {
	if v6 {
		return unix.NFT_REG32_00 + 4
	}
	return unix.NFT_REG32_00 + 1
}

func family(v6 bool) []expr.Any {
	f := byte(unix.NFPROTO_IPV4)
	if v6 {
		f = unix.NFPROTO_IPV6
	}
	return []expr.Any{&expr.Meta{Key: expr.MetaKeyNFPROTO, Register: 1}, &expr.Cmp{Op: expr.CmpOpEq, Register: 1, Data: []byte{f}}}
}

func protocol(p byte) []expr.Any {
	return []expr.Any{&expr.Meta{Key: expr.MetaKeyL4PROTO, Register: 1}, &expr.Cmp{Op: expr.CmpOpEq, Register: 1, Data: []byte{p}}}
}

func destination(v6 bool, register uint32) []expr.Any {
	offset, length := uint32(16), uint32(4) // RFC 791, 3.1
	if v6 {
		offset, length = 24, 16 // RFC 8200, 3
	}
	return []expr.Any{&expr.Payload{DestRegister: register, Base: expr.PayloadBaseNetworkHeader, Offset: offset, Len: length}}
}

func destinationPort(register uint32) []expr.Any {
	return []expr.Any{&expr.Payload{DestRegister: register, Base: expr.PayloadBaseTransportHeader, Offset: 2, Len: 2}}
}

func refusedID() []expr.Any {
	return []expr.Any{
		&expr.Meta{Key: expr.MetaKeySKUID, Register: 1},
		&expr.Byteorder{SourceRegister: 1, DestRegister: 1, Op: expr.ByteorderHton, Len: 4, Size: 4},
		&expr.Lookup{SourceRegister: 1, SetName: refusedSet},
	}
}

// reset counts and ends a TCP connection at once. To an established one an
// ICMP error would be a hint that TCP ignores (RFC 1122, 4.2.3.9); to a new
// one it comes while connect() holds the socket, is dropped, and counts only
// when the SYN is sent again a second later.
func reset() []expr.Any {
	return []expr.Any{&expr.Counter{}, &expr.Reject{Type: unix.NFT_REJECT_TCP_RST}}
}

// refuse counts and rejects, so that the caller learns at once.
func refuse() []expr.Any {
	return []expr.Any{&expr.Counter{}, &expr.Reject{Type: unix.NFT_REJECT_ICMPX_UNREACH, Code: unix.NFT_REJECT_ICMPX_PORT_UNREACH}}
}
