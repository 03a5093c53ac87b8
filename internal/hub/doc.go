// Package hub is what the host's own servers (control, audit, front) have in
// common: root speaks to them over one socket, and each agent's gateway over a
// socket of its own, which root hands over while they run.
//
// # Who is heard
//
// The operator's socket answers root, as the kernel tells it. A member's socket
// answers a peer only when all three are right: the socket itself, which the
// warden made reachable for one gateway alone; the peer's id, which is that
// gateway's; and the token that the warden gave to it. The overflow id 65534,
// which stands for anybody, is never taken. These servers live in the initial
// user namespace, where the kernel shows true ids.
//
// # On the wire
//
// Frames are those of internal/wire. Root greets as [OperatorProtocol] and asks
// one thing after the other; each is answered by "result" or "error". Three
// verbs are the hub's own: [VerbAdmit], with the member's listening socket,
// [VerbExpel] and [VerbMembers]. A member greets as the server's own protocol,
// sends [VerbAuth] and is answered by "ok", or by "denied" and the end. What
// follows is the server's.
package hub

import (
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"

	"bulkhead/internal/identity"
)

// Descriptors that the warden passes to a server: its config, root's listening
// socket, and what the server itself wants after them.
const (
	ConfigFD   = 3
	OperatorFD = 4
	FirstFD    = 5
)

// The operator's protocol.
const (
	OperatorProtocol = "service"
	OperatorVersion  = 1
)

// Verbs of the hub.
const (
	VerbAdmit   = "admit"   // [Member] with one listening socket -> struct{}
	VerbExpel   = "expel"   // [Member], by team and agent -> struct{}
	VerbMembers = "members" // struct{} -> [Members]
	VerbAuth    = "auth"    // [Auth] -> VerbOK
	VerbDenied  = "denied"
)

// Member is one agent's gateway, and how it is known.
type Member struct {
	Team      string `json:"team"`
	Agent     string `json:"agent"`
	GatewayID uint32 `json:"gatewayID"` // on the host
	TokenHash string `json:"tokenHash"` // [HashToken]
}

// Key names a member among all.
func (m Member) Key() string { return m.Team + "/" + m.Agent }

// Members are those that are admitted.
type Members struct {
	Members []Member `json:"members"`
}

// Auth is the first request of a member.
type Auth struct {
	Token string `json:"token"`
}

// HashToken is the SHA-256 of a token, in lower-case hex.
func HashToken(token string) string {
	sum := sha256.Sum256([]byte(token))
	return hex.EncodeToString(sum[:])
}

func (m Member) check() error {
	switch raw, err := hex.DecodeString(m.TokenHash); {
	case m.Team == "" || m.Agent == "":
		return errors.New("hub: a member has a team and an agent")
	case m.GatewayID == 0 || m.GatewayID == identity.Overflow:
		return fmt.Errorf("hub: gatewayID %d stands for root or for anybody", m.GatewayID)
	case err != nil || len(raw) != sha256.Size:
		return errors.New("hub: tokenHash is not a SHA-256 in hex")
	}
	return nil
}
