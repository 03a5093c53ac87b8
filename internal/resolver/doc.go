// Package resolver asks DNS for the names of manifests, and for no others.
//
// `bulkhead-net resolver` runs under an id of its own, which nftables lets
// reach port 53 of the host's DNS servers and nothing else. The warden, its
// only client, tells it the complete list of names, asks for one at a time and
// checks every address itself: what a DNS server says is never believed.
//
// An answer is either addresses or "not found" (the server's word); anything
// else is a failure, for which the warden may go on with an earlier answer.
// The hosts file and resolv.conf are read by Go's own resolver.
package resolver
