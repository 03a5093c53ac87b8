package wire

import "time"

// FenceRequest cuts agents off from every network and stops their processes
// where they stand, at once. It waits for nothing that the warden does
// meanwhile.
type FenceRequest struct {
	Team   string   `json:"team,omitempty"`   // empty: every team
	Agents []string `json:"agents,omitempty"` // of one team; empty: all
	Why    string   `json:"why,omitempty"`
}

// Fence says that an agent is fenced. It outlives the warden and the host's
// restart: only VerbUnfence ends it.
type Fence struct {
	Since time.Time `json:"since"` // UTC
	By    string    `json:"by"`    // "uid 0", or what noticed drift
	Why   string    `json:"why,omitempty"`
}

// FenceResult says what was fenced, as the kernel says it.
type FenceResult struct {
	SchemaVersion int           `json:"schemaVersion"`
	Agents        []FencedAgent `json:"agents"`
}

// FencedAgent is one agent that was fenced.
type FencedAgent struct {
	Team    string `json:"team"`
	Agent   string `json:"agent"`
	CutOff  bool   `json:"cutOff"`            // its ids are refused, read back from nftables
	Frozen  bool   `json:"frozen"`            // no process of it runs, read back from its control group
	Problem string `json:"problem,omitempty"` // what could not be done
}
