// Package gatewayconfig is what the warden tells a gateway at its start. It is
// a package of its own so that the warden, which runs as root, does not link
// the gateway's HTTP server.
package gatewayconfig

import (
	"errors"
	"fmt"
	"net"
	"net/netip"

	"bulkhead/internal/identity"
	"bulkhead/internal/layout"
	"bulkhead/internal/team"
	"bulkhead/internal/wire"
)

// minToken is the shortest token that is taken: 128 bits as base64.
const minToken = 22

// Config is what a gateway is told at its start, as JSON on descriptor 4.
type Config struct {
	Team  string `json:"team"`
	Agent string `json:"agent"`
	Token string `json:"token"` // the runtime's token; at least 22 characters
	// RuntimeID is the id, as the gateway sees it, of the runtime. Zero:
	// layout.RuntimeID. The overflow id 65534 is refused whatever this says.
	RuntimeID uint32 `json:"runtimeID,omitempty"`
	// Egress and Hosts are the agent's, from the manifest.
	Egress []team.Destination      `json:"egress"`
	Hosts  map[string][]netip.Addr `json:"hosts,omitempty"`
	// Grants are the temporary destinations at the start.
	Grants []wire.Grant `json:"grants,omitempty"`
	// TakesGrants says that descriptor 5 is a listening socket, which only root
	// can reach, for the grants protocol.
	TakesGrants bool `json:"takesGrants,omitempty"`
	// GrantsListener is that socket.
	GrantsListener *net.UnixListener `json:"-"`
	// DialerSocket is the path, as the gateway sees it, of
	// layout.Agent.DialerSocket.
	DialerSocket string `json:"dialerSocket"`
	// CodeSocket is the path, as the gateway sees it, of
	// layout.Agent.ProcSocket. Empty: no code runs for the agent.
	CodeSocket string `json:"codeSocket,omitempty"`
	// AdapterSocket is the path, as the gateway sees it, of the agent's own
	// socket at the team's adapter, and AdapterToken what it is opened with.
	// Empty: the agent has no messages.
	AdapterSocket string `json:"adapterSocket,omitempty"`
	AdapterToken  string `json:"adapterToken,omitempty"`
	// Tools is what the gateway serves beside messages; nil: nothing.
	Tools *team.Tools `json:"tools,omitempty"`
	// Ask is which calls of them wait for a person; nil: none.
	Ask *team.Ask `json:"ask,omitempty"`
	// Data is the path, as the gateway sees it, of layout.Agent.Data. The
	// outbox and system.db lie in it.
	Data string `json:"data,omitempty"`
	// SpoolBytes bounds the records that wait for audit; 0: store.DefaultSpool.
	SpoolBytes int64 `json:"spoolBytes,omitempty"`
	// Front, Audit and Topics are the host's own servers. Nil: there is none.
	Front  *Service `json:"front,omitempty"`
	Audit  *Service `json:"audit,omitempty"`
	Topics *Service `json:"topics,omitempty"`
	// MaxConnections bounds concurrent connections of the runtime; zero: 512.
	MaxConnections int `json:"maxConnections,omitempty"`
}

// Service is how a gateway reaches one of them: its own socket, as it sees it,
// and the token that opens it.
type Service struct {
	Socket string `json:"socket"`
	Token  string `json:"token"`
}

// Check fills defaults and refuses what would be weak.
func (c *Config) Check() error {
	if c.RuntimeID == 0 {
		c.RuntimeID = layout.RuntimeID
	}
	switch {
	case c.Team == "" || c.Agent == "" || c.DialerSocket == "":
		return errors.New("gateway: the config must give team, agent and dialerSocket")
	case len(c.Token) < minToken:
		return fmt.Errorf("gateway: the token is shorter than %d characters", minToken)
	case c.AdapterSocket != "" && (len(c.AdapterToken) < minToken || c.Data == ""):
		return fmt.Errorf("gateway: messages need data, and an adapterToken of at least %d characters", minToken)
	case c.Tools != nil && c.Data == "":
		return errors.New("gateway: tools need data")
	case c.Front.weak() || c.Audit.weak() || c.Topics.weak():
		return fmt.Errorf("gateway: front, audit and topics need a socket, and a token of at least %d characters", minToken)
	case c.RuntimeID == identity.Overflow:
		return errors.New("gateway: runtimeID is the overflow id, which stands for anybody")
	}
	return nil
}

func (s *Service) weak() bool { return s != nil && (s.Socket == "" || len(s.Token) < minToken) }
