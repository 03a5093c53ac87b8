package engine

import "bulkhead/internal/wire"

// ShimMode says when the shim starts its command.
type ShimMode string

// The modes of a shim.
const (
	ShimService ShimMode = "service" // at once; its end ends the container
	ShimTask    ShimMode = "task"    // the same, and its end is a success or a failure of the task
	ShimSession ShimMode = "session" // never by itself: processes come through exec alone
)

// ShimControl is the descriptor of a shim's control listener.
const ShimControl = 4

// ShimConfig is what the shim, PID 1 of a container, reads from descriptor 3:
// a sealed memfd that the starter made. Descriptor 4 is its control listener.
// The command gets its own descriptors from 3 on.
type ShimConfig struct {
	Version int      `json:"version"` // SpecVersion
	Build   string   `json:"build,omitempty"`
	Mode    ShimMode `json:"mode"`
	Command []string `json:"command,omitempty"`
	Dir     string   `json:"dir,omitempty"`
	// Terminal gives the command a terminal, to which operators attach. A command
	// that a session is attached to has one always.
	Terminal bool `json:"terminal,omitempty"`

	// Listeners are opened on the container's loopback and handed to the
	// gateway behind GatewaySocket, with Token. None: nothing is handed over.
	Listeners     []wire.Listener `json:"listeners,omitempty"`
	GatewaySocket string          `json:"gatewaySocket,omitempty"`
	Token         string          `json:"token,omitempty"`

	// TokenFile is where the shim writes the token of the agent's tools
	// (tooltoken.Of), mode 0400; wire.EnvTokenFile and wire.EnvGatewaySocket
	// tell everything that it starts. Empty: the agent has no tools.
	TokenFile string `json:"tokenFile,omitempty"`
	// Push delivers the agent's messages into its own HTTP hook.
	Push *Push `json:"push,omitempty"`

	// Ports are those of the container's own loopback to which the shim
	// connects for an operator.
	Ports []uint16 `json:"ports,omitempty"`

	// PassFiles is how many descriptors from 5 on belong to the command, which
	// finds them from 3 on.
	PassFiles int `json:"passFiles,omitempty"`

	// Relayed says that nothing can be passed out of the container: descriptor
	// 4 is a connection over which control connections come in, each with the
	// descriptors that its requests need, and connections to the listeners are
	// relayed to the gateway one by one. The engine fills it in.
	Relayed bool `json:"relayed,omitempty"`

	// Landlock is the ABI in force. The engine fills it in.
	Landlock int `json:"landlock,omitempty"`
}

// Push is an HTTP hook on the runtime's own loopback that takes messages by
// POST, in the form of OpenClaw's /hooks/agent.
type Push struct {
	Port      uint16 `json:"port"`
	Path      string `json:"path"`
	TokenFile string `json:"tokenFile,omitempty"` // inside the runtime: what the hook wants as Bearer
}
