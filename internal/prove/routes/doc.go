// Package routes reads, over netlink and bpf(2), what can still happen to a packet
// of a local socket once the rules of nftables let it out: which routes it may take,
// and what lies on the interfaces that they lead to.
//
// It answers too much rather than too little: each routing rule that is not ruled
// out by what it compares counts as one that applies, with every route of its table
// that holds the address, and every interface below those. Rules that compare a mark
// are ruled out: the packets have none, which is for others to show (no rule of
// nftables marks them, and SO_MARK takes a capability). What cannot be read is an
// error, never "nothing".
//
// Not read: what the addresses' owners do with a packet, and programs of root that
// change the kernel itself (kprobes, BPF LSM).
package routes
