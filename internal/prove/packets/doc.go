// Package packets says exactly which packets of a user id the host's own rules
// let out, from what the kernel holds: every nftables table of every family,
// read over netlink ([Read]).
//
// It does not send packets. A ruleset is interpreted for all packets of an id at
// once: a [Box] is a family, an interval of protocols, of destination addresses
// and of ports, and whether TCP's SYN is set; each rule cuts boxes apart, and
// what is accepted is a list of boxes ([Ruleset.Accepted]). Where a rule looks at
// something that a box does not hold (a mark, an interface, the time), both
// outcomes are followed: the answer may be larger than the truth, never smaller.
//
// What could make a packet go elsewhere than it says, address translation,
// marks that policy routing may read, duplicates, queues to programs, is listed
// ([Ruleset.Detours]): with such rules in the way nothing is proven.
package packets
