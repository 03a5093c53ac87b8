package packets

import (
	"bytes"
	"fmt"
	"net/netip"
	"slices"
)

// Range is a closed interval of numbers.
type Range struct{ First, Last uint32 }

func (r Range) meets(o Range) (Range, bool) {
	m := Range{max(r.First, o.First), min(r.Last, o.Last)}
	return m, m.First <= m.Last
}

// without gives what is left of r.
func (r Range) without(o Range) []Range {
	m, ok := r.meets(o)
	if !ok {
		return []Range{r}
	}
	var out []Range
	if m.First > r.First {
		out = append(out, Range{r.First, m.First - 1})
	}
	if m.Last < r.Last {
		out = append(out, Range{m.Last + 1, r.Last})
	}
	return out
}

// Syn says what is known of TCP's SYN flag.
type Syn uint8

// What may be known.
const (
	EitherSyn Syn = iota
	WithSyn
	WithoutSyn
)

// Box is a set of packets.
type Box struct {
	IPv6        bool
	Proto       Range      // of IP's protocol numbers
	First, Last netip.Addr // destinations, included
	Port        Range      // of the destination; only protocols that have ports
	Syn         Syn
	// From and Until are sources, included, and SourcePort their ports, as the
	// packets themselves say; only protocols that have ports.
	From, Until netip.Addr
	SourcePort  Range
	// Guess says that a rule was met that looks at something else, so that not
	// every packet of the box need be let through.
	Guess bool
}

// everything is all packets of one family.
func everything(v6 bool) Box {
	b := Box{IPv6: v6, Proto: Range{0, 255}, Port: Range{0, 65535}, SourcePort: Range{0, 65535}}
	b.First, b.Last = netip.IPv4Unspecified(), netip.AddrFrom4([4]byte{255, 255, 255, 255})
	if v6 {
		b.First = netip.IPv6Unspecified()
		b.Last = netip.AddrFrom16([16]byte(bytes.Repeat([]byte{255}, 16)))
	}
	b.From, b.Until = b.First, b.Last
	return b
}

// FromAnywhere says whether nothing is asked of the packets' sources.
func (b Box) FromAnywhere() bool {
	all := everything(b.IPv6)
	return b.From == all.From && b.Until == all.Until && b.SourcePort == all.SourcePort
}

// String reads like "tcp 203.0.113.7 port 443 with SYN", and says from where when
// that is asked for.
func (b Box) String() string {
	proto := fmt.Sprintf("protocol %d", b.Proto.First)
	switch {
	case b.Proto == Range{6, 6}:
		proto = "tcp"
	case b.Proto == Range{17, 17}:
		proto = "udp"
	case b.Proto.First != b.Proto.Last:
		proto = fmt.Sprintf("protocols %d-%d", b.Proto.First, b.Proto.Last)
	}
	from := ""
	if !b.FromAnywhere() {
		from = " from " + end(b.From, b.Until, b.SourcePort)
	}
	return fmt.Sprintf("%s %s%s%s", proto, end(b.First, b.Last, b.Port), [...]string{"", " with SYN", " without SYN"}[b.Syn], from)
}

func end(first, last netip.Addr, ports Range) string {
	at := first.String()
	if first != last {
		at += "-" + last.String()
	}
	port := fmt.Sprint(ports.First)
	if ports.First != ports.Last {
		port += fmt.Sprintf("-%d", ports.Last)
	}
	return at + " port " + port
}

// Holds says whether every packet of o is one of b.
func (b Box) Holds(o Box) bool {
	return b.IPv6 == o.IPv6 && b.Proto.First <= o.Proto.First && b.Proto.Last >= o.Proto.Last &&
		b.First.Compare(o.First) <= 0 && b.Last.Compare(o.Last) >= 0 &&
		b.Port.First <= o.Port.First && b.Port.Last >= o.Port.Last &&
		b.From.Compare(o.From) <= 0 && b.Until.Compare(o.Until) >= 0 &&
		b.SourcePort.First <= o.SourcePort.First && b.SourcePort.Last >= o.SourcePort.Last && (b.Syn == EitherSyn || b.Syn == o.Syn)
}

// addresses gives a box's destinations, or its sources.
func (b *Box) addresses(sources bool) (first, last *netip.Addr) {
	if sources {
		return &b.From, &b.Until
	}
	return &b.First, &b.Last
}

// cut splits a box at destinations, or sources: those within, and up to two
// outside.
func (b Box) cut(sources bool, first, last netip.Addr) (in []Box, out []Box) {
	of := func(lo, hi netip.Addr) Box {
		x := b
		f, l := x.addresses(sources)
		*f, *l = lo, hi
		return x
	}
	f, l := b.addresses(sources)
	lo, hi := later(*f, first), earlier(*l, last)
	if lo.Compare(hi) > 0 {
		return nil, []Box{b}
	}
	if lo.Compare(*f) > 0 {
		out = append(out, of(*f, lo.Prev()))
	}
	if hi.Compare(*l) < 0 {
		out = append(out, of(hi.Next(), *l))
	}
	return []Box{of(lo, hi)}, out
}

func later(a, b netip.Addr) netip.Addr {
	if a.Compare(b) > 0 {
		return a
	}
	return b
}

func earlier(a, b netip.Addr) netip.Addr {
	if a.Compare(b) < 0 {
		return a
	}
	return b
}

// dimension is a number of a box that rules compare.
type dimension int

const (
	protoOf dimension = iota
	portOf
	sourcePortOf
)

func (b *Box) number(d dimension) *Range {
	switch d {
	case protoOf:
		return &b.Proto
	case sourcePortOf:
		return &b.SourcePort
	}
	return &b.Port
}

// cutNumber splits a box at an interval of one of its numbers.
func (b Box) cutNumber(d dimension, at Range) (in, out []Box) {
	if m, ok := b.number(d).meets(at); ok {
		x := b
		*x.number(d) = m
		in = append(in, x)
	}
	for _, r := range b.number(d).without(at) {
		x := b
		*x.number(d) = r
		out = append(out, x)
	}
	return in, out
}

// cutSyn splits a box at TCP's SYN.
func (b Box) cutSyn(with bool) (in, out []Box) {
	want, other := WithSyn, WithoutSyn
	if !with {
		want, other = other, want
	}
	if b.Syn == EitherSyn || b.Syn == want {
		x := b
		x.Syn = want
		in = append(in, x)
	}
	if b.Syn == EitherSyn || b.Syn == other {
		x := b
		x.Syn = other
		out = append(out, x)
	}
	return in, out
}

// tidy sorts boxes and drops those that another one holds.
func tidy(boxes []Box) []Box {
	var out []Box
	for i, b := range boxes {
		held := slices.IndexFunc(boxes, func(o Box) bool { return o != b && o.Holds(b) }) >= 0 || slices.Index(boxes, b) < i
		if !held {
			out = append(out, b)
		}
	}
	slices.SortFunc(out, func(a, b Box) int {
		if a.IPv6 != b.IPv6 {
			if a.IPv6 {
				return 1
			}
			return -1
		}
		if c := a.First.Compare(b.First); c != 0 {
			return c
		}
		if a.Port.First != b.Port.First {
			return int(a.Port.First) - int(b.Port.First)
		}
		if a.Proto.First != b.Proto.First {
			return int(a.Proto.First) - int(b.Proto.First)
		}
		if a.Syn != b.Syn {
			return int(a.Syn) - int(b.Syn)
		}
		if c := a.From.Compare(b.From); c != 0 {
			return c
		}
		return int(a.SourcePort.First) - int(b.SourcePort.First)
	})
	return out
}
