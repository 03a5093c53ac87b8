// Package dialer makes TCP connections for one agent's gateway, under an id
// that nftables binds to that agent's pinned addresses, and passes the
// connected sockets on. It holds nothing and decides nothing: the warden does.
//
// `bulkhead-net dialer` finds its listening socket on descriptor 3 and its
// [Config] as JSON on descriptor 4. It only ever makes sockets and connects
// them: no bind, no listen.
//
// Pins are cached until they expire and renewed before, so that an agent at
// work waits for the warden once. While the warden is away (its restart)
// cached pins serve and new destinations fail closed.
package dialer

import "errors"

// Config is what a dialer is told at its start, as JSON on descriptor 4.
type Config struct {
	// Gateway is the host id that may ask; everybody else is turned away.
	// Zero lets root alone ask, who needs no dialer: nothing is open by mistake.
	Gateway uint32 `json:"gateway"`
	// PinSocket is the path, as the dialer sees it, of layout.Agent.PinSocket.
	PinSocket string `json:"pinSocket"`
	// Connections is how many sockets that this dialer gave away may be alive at
	// a time, whoever holds them.
	Connections int `json:"connections"`
	// PerSecond is how many it makes in a second for long, and 64 times as many
	// at once. Zero: no bound, for those who measure.
	PerSecond int `json:"perSecond,omitempty"`
}

// Check says what is missing.
func (c Config) Check() error {
	if c.PinSocket == "" {
		return errors.New("dialer: the config must give pinSocket, a path")
	}
	if c.Connections <= 0 || c.PerSecond < 0 {
		return errors.New("dialer: the config must give connections, 1 or more, and no negative perSecond")
	}
	return nil
}
