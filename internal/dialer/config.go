// Package dialer makes TCP connections for one agent's gateway, under an id
// that nftables binds to that agent's pinned addresses, and passes the
// connected sockets on. It holds nothing and decides nothing: the warden does.
//
// `bulkhead-net dialer` finds its listening socket on descriptor 3 and its
// [Config] as JSON on descriptor 4.
package dialer

// Config is what a dialer is told at its start, as JSON on descriptor 4.
type Config struct {
	// Gateway is the host id that may ask; everybody else is turned away.
	Gateway uint32 `json:"gateway"`
	// PinSocket is the path, as the dialer sees it, of layout.Agent.PinSocket.
	PinSocket string `json:"pinSocket"`
}
