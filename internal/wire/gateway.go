package wire

// The gateway protocol: shim of the runtime -> gateway, over
// layout.Agent.GatewaySocket, and the agent's tools over HTTP on the same
// socket. The gateway tells the two apart by the first byte: a frame
// starts with 0x00 (a length below 16 MiB), HTTP with a letter.
const (
	GatewayProtocol = "gateway"
	GatewayVersion  = 1
)

// Verbs of the gateway protocol.
const (
	// VerbListen hands listening TCP sockets of the runtime's own loopback to
	// the gateway, which accepts on them directly: nobody stands between client
	// and gateway. Request [ListenRequest] with one descriptor per listener, in
	// order. Answer VerbOK. The listeners live as long as the connection.
	VerbListen = "listen"
	// VerbRelay is the only request of its connection, which afterwards carries
	// one connection to a listener of a runtime that cannot hand listeners over.
	// Request [RelayRequest]; answer VerbOK, then bytes.
	VerbRelay = "relay"
)

// RelayRequest says what the connection that follows is for.
type RelayRequest struct {
	Token  string `json:"token"`
	Target string `json:"target,omitempty"` // as in [Listener]
}

// ListenRequest hands over listeners.
type ListenRequest struct {
	Token     string     `json:"token"` // the runtime's token
	Listeners []Listener `json:"listeners"`
	// Relayed: no descriptors come. The shim accepts, and asks for each
	// connection with VerbRelay; this request says which targets there are, and
	// whether the gateway takes them.
	Relayed bool `json:"relayed,omitempty"`
}

// Listener is one loopback listener of the runtime.
type Listener struct {
	// Address is where the shim listens, inside the runtime: "11.77.0.5:443".
	Address string `json:"address"`
	// Target is the listed destination that a connection is for: "name:port".
	// Empty: the HTTP proxy.
	Target string `json:"target,omitempty"`
}

// OwnName is the name under which a gateway answers itself, on OwnPort, to
// clients that come through the runtime's proxy. It is never dialled.
const (
	OwnName = "bulkhead.internal"
	OwnPort = 80
)

// What the shim tells the agent's processes.
const (
	// EnvTokenFile names the file with the tools' token.
	EnvTokenFile = "BULKHEAD_TOKEN_FILE"
	// EnvGatewaySocket names gateway.sock.
	EnvGatewaySocket = "BULKHEAD_GATEWAY_SOCKET"
)
