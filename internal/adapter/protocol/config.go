package protocol

import (
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"

	"bulkhead/internal/adapter"
	"bulkhead/internal/identity"
)

// ConfigFD is the descriptor of the [Config], as JSON. The listening sockets
// follow from FirstListenerFD on, in the order of Config.Listeners.
const (
	ConfigFD        = 3
	FirstListenerFD = 4
)

// OperatorListener stands in Config.Listeners for the operator's socket. No
// agent can have this name.
const OperatorListener = adapter.OperatorName

// Config is what an adapter is told at its start.
type Config struct {
	Team   string           `json:"team"`
	Policy adapter.Policy   `json:"policy"`
	Agents map[string]Agent `json:"agents"`
	// Database is the path, as the adapter sees it, of its file.
	Database string `json:"database"`
	// Listeners says whose socket each descriptor is: agents' names, and
	// OperatorListener exactly once.
	Listeners []string `json:"listeners"`
}

// Agent is how one agent's gateway is known.
type Agent struct {
	GatewayID uint32 `json:"gatewayID"` // on the host
	TokenHash string `json:"tokenHash"` // [HashToken] of the token in the gateway's configuration
}

// HashToken is the SHA-256 of a token, in lower-case hex.
func HashToken(token string) string {
	sum := sha256.Sum256([]byte(token))
	return hex.EncodeToString(sum[:])
}

// Check refuses what could not serve, or could serve the wrong one.
func (c *Config) Check() error {
	if c.Team == "" || c.Database == "" {
		return errors.New("adapter: the config must give team and database")
	}
	seen := map[string]bool{}
	ids := map[uint32]string{}
	for _, name := range c.Listeners {
		if seen[name] {
			return fmt.Errorf("adapter: two listeners for %.64q", name)
		}
		seen[name] = true
		if name == OperatorListener {
			continue
		}
		a, ok := c.Agents[name]
		if !ok {
			return fmt.Errorf("adapter: a listener for %.64q, which is not among the agents", name)
		}
		if err := a.check(); err != nil {
			return fmt.Errorf("adapter: agent %.64q: %w", name, err)
		}
		if other, taken := ids[a.GatewayID]; taken {
			return fmt.Errorf("adapter: agents %.64q and %.64q have the same gatewayID %d", other, name, a.GatewayID)
		}
		ids[a.GatewayID] = name
	}
	if !seen[OperatorListener] {
		return fmt.Errorf("adapter: no listener %q", OperatorListener)
	}
	return nil
}

func (a Agent) check() error {
	if a.GatewayID == 0 || a.GatewayID == identity.Overflow {
		return fmt.Errorf("gatewayID %d stands for root or for anybody", a.GatewayID)
	}
	if raw, err := hex.DecodeString(a.TokenHash); err != nil || len(raw) != sha256.Size {
		return errors.New("tokenHash is not a SHA-256 in hex")
	}
	return nil
}
