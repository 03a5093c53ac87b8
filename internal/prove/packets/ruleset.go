package packets

import "fmt"

// Family is a netfilter protocol family (linux/netfilter.h).
type Family uint8

// The families whose chains can judge a packet of a local socket.
const (
	INet   Family = 1
	IPv4   Family = 2
	ARP    Family = 3
	NetDev Family = 5
	Bridge Family = 7
	IPv6   Family = 10
)

// String names the family as nft(8) does.
func (f Family) String() string {
	switch f {
	case INet:
		return "inet"
	case IPv4:
		return "ip"
	case ARP:
		return "arp"
	case NetDev:
		return "netdev"
	case Bridge:
		return "bridge"
	case IPv6:
		return "ip6"
	}
	return fmt.Sprintf("family %d", uint8(f))
}

// Hooks of the IP families (linux/netfilter.h). A packet of a local socket
// passes output, then postrouting.
const (
	hookOutput      = 3
	hookPostrouting = 4
	hookEgress      = 1 // of family netdev, and of inet (NF_INET_INGRESS is 5)
)

// Ruleset is everything that a host's kernel judges packets by.
type Ruleset struct {
	Tables []*Table
}

// Table is one table.
type Table struct {
	Family  Family
	Name    string
	Dormant bool
	Chains  map[string]*Chain
	Sets    map[string]*Set
}

// String names the table as nft(8) does.
func (t *Table) String() string { return t.Family.String() + " " + t.Name }

// Chain is one chain with its rules, in order.
type Chain struct {
	Name     string
	Base     bool
	Type     string // "filter", "nat", "route"
	Hook     uint32
	Priority int32
	Drop     bool // the policy; false: accept
	Rules    []Rule
}

// Rule is the expressions of one rule.
type Rule struct {
	Handle uint64
	Exprs  []Expr
}

// Expr is one expression: its name and its attributes, as the kernel sends
// them.
type Expr struct {
	Name string
	Attr map[uint16][]byte
}

// Set is a set or a map.
type Set struct {
	Name     string
	Flags    uint32
	KeyLen   int
	Elements []Element
}

// Element is one element; Last is the end of an interval, included, and equal
// to Key without one.
type Element struct {
	Key, Last []byte
	End       bool // where the interval before ends, as the kernel sends it
	Verdict   *Verdict
}

// Verdict is what a rule or an element of a verdict map says.
type Verdict struct {
	Code  int32 // NF_DROP 0, NF_ACCEPT 1, NFT_CONTINUE -1, NFT_BREAK -2, NFT_JUMP -3, NFT_GOTO -4, NFT_RETURN -5
	Chain string
}

// Codes of verdicts (linux/netfilter.h, linux/netfilter/nf_tables.h).
const (
	drop      = 0
	accept    = 1
	queue     = 3
	goOn      = -1
	nextRule  = -2
	jump      = -3
	gotoChain = -4
	back      = -5
)

// Table finds a table; nil when there is none.
func (r *Ruleset) Table(f Family, name string) *Table {
	for _, t := range r.Tables {
		if t.Family == f && t.Name == name {
			return t
		}
	}
	return nil
}
