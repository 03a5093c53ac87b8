package wire

import (
	"net/netip"
	"time"

	"bulkhead/internal/deny"
)

// The dialer protocol: gateway -> its dialer, over layout.Agent.DialerSocket.
// Pipelined: answers may come in any order.
const (
	DialerProtocol = "dialer"
	DialerVersion  = 1
)

// Verbs of the dialer protocol.
const (
	// VerbDial asks for a connection. Request [DialRequest]; answer
	// VerbConnected [Connected] with one descriptor, or VerbDenied with a
	// deny.Reason. The descriptor is a connected TCP socket, or, of a dialer
	// that relays, one end of a connected pair of unix stream sockets.
	VerbDial = "dial"
	// VerbSocket asks for a TCP socket that is not connected, for attacks that
	// aim a passed socket elsewhere. It gives nothing away: the kernel judges
	// every packet of it by the dialer's id. A dialer that relays refuses it.
	VerbSocket = "socket"
	// VerbAddresses asks where VerbDial would connect to. Request [DialRequest];
	// answer VerbAddresses [Answer], or VerbDenied. It pins as VerbDial does. A
	// destination behind an upstream proxy is denied: the proxy resolves it.
	VerbAddresses = "addresses"
	VerbConnected = "connected"
	VerbDenied    = "denied"
)

// DialRequest names a destination exactly as the client did.
type DialRequest struct {
	Host string `json:"host"` // a name, or an IP address in text form; "host" is this host's loopback
	Port uint16 `json:"port"`
}

// Connected says where the passed socket leads.
type Connected struct {
	Address netip.AddrPort `json:"address"`          // the upstream proxy's, when the connection goes through it
	Family  int            `json:"family,omitempty"` // VerbSocket only: 4 or 6
}

// The pin protocol: dialer -> warden, over layout.Agent.PinSocket. The warden
// knows the agent by the socket, and checks the peer's id.
const (
	PinProtocol = "pin"
	PinVersion  = 1
)

// Verbs of the pin protocol.
const (
	// VerbPin asks for addresses that the kernel lets this dialer reach.
	// Request [DialRequest]; answer VerbPinned [Pinned] once nftables took
	// them, or VerbDenied with a deny.Reason.
	VerbPin    = "pin"
	VerbPinned = "pinned"
	// VerbProxied answers instead of VerbPinned when the destination is reached
	// through the upstream proxy: [Pinned] with the proxy's addresses, and Via.
	// It is a verb of its own so that a dialer that cannot relay refuses it.
	VerbProxied = "proxied"
	// VerbUnpin is sent by the warden, unasked, with [DialRequest]: forget it.
	VerbUnpin = "unpin"
)

// Pinned lists addresses in the order in which to try them. After Expires the
// kernel refuses new connections to them.
type Pinned struct {
	Addresses []netip.AddrPort `json:"addresses"`
	Expires   time.Time        `json:"expires"`
	Stale     bool             `json:"stale,omitempty"` // DNS failed; this is the last good answer
	Age       time.Duration    `json:"age,omitempty"`   // of the answer, when Stale
	Via       *Via             `json:"via,omitempty"`   // set with VerbProxied, and only there
}

// Via says how a destination is reached through the upstream proxy.
type Via struct {
	Proxy  string `json:"proxy"`  // as the manifest names it, "proxy.corp.example:3128"; for messages
	Target string `json:"target"` // what to CONNECT to: "name:port" in its normal form
	// Authorization is the value of Proxy-Authorization, a secret that stays in
	// the dialer. Empty: none is sent.
	Authorization string `json:"authorization,omitempty"`
	// Ends is when connections have to end, for a temporary destination: the
	// kernel cannot tell them from others that lead to the proxy.
	Ends time.Time `json:"ends,omitzero"`
}

// The resolver protocol: warden -> resolver. The resolver answers only names
// that it was given by VerbNames; it holds nothing else.
const (
	ResolverProtocol = "resolver"
	ResolverVersion  = 1
)

// Verbs of the resolver protocol.
const (
	VerbNames  = "names"  // [Names]: the complete list, replaces the former
	VerbLookup = "lookup" // [Lookup] -> VerbAnswer [Answer] or VerbError
	VerbAnswer = "answer"
)

// Names is everything that the resolver may ask DNS for. An entry "*.suffix"
// covers every name below the suffix.
type Names struct {
	Names []string `json:"names"`
}

// Lookup asks for the addresses of one name.
type Lookup struct {
	Name string `json:"name"`
}

// Answer is what DNS said. The warden checks every address again.
type Answer struct {
	Addresses []netip.Addr `json:"addresses"`
	NotFound  bool         `json:"notFound,omitempty"` // NXDOMAIN or no address: an answer, not a failure
}

// Denied wraps a reason for the wire.
type Denied struct {
	Reason deny.Reason `json:"reason"`
}
