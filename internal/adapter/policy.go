package adapter

// Policy says who may write to whom: the manifest's, made by the warden.
type Policy struct {
	Team   string                 `json:"team"`
	Agents map[string]AgentPolicy `json:"agents"`
	// Channels maps a channel to its members: they may write to it, and get
	// what others write.
	Channels map[string][]string `json:"channels,omitempty"`
	// Orchestrator is the agent that is alerted; empty: operators only.
	Orchestrator string `json:"orchestrator,omitempty"`
}

// AgentPolicy is what one agent may do.
type AgentPolicy struct {
	To       []string `json:"to,omitempty"`       // agents that it may write to directly
	Critical []Type   `json:"critical,omitempty"` // critical types that it may send
	// MaxBytes bounds what of this sender is kept in queues and dead letters;
	// 0: DefaultBytes.
	MaxBytes int64 `json:"maxBytes,omitempty"`
}

// DefaultBytes is the byte quota of a sender: 64 MiB.
const DefaultBytes = 64 << 20
