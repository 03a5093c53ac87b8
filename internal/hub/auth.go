package hub

import (
	"crypto/sha256"
	"crypto/subtle"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"os"

	"bulkhead/internal/deny"
	"bulkhead/internal/record"
	"bulkhead/internal/wire"
)

// proves compares hashes, in constant time.
func (s *seat) proves(m wire.Message) bool {
	var a Auth
	want, err := hex.DecodeString(s.TokenHash)
	if err != nil || m.Verb != VerbAuth || json.Unmarshal(m.Body, &a) != nil {
		return false
	}
	sum := sha256.Sum256([]byte(a.Token))
	return subtle.ConstantTimeCompare(sum[:], want) == 1
}

// refuse writes a refused connection down. An empty why is a wrong token.
func (h *Hub) refuse(target, team, agent, why string) *deny.Reason {
	r := &deny.Reason{
		Layer: deny.LayerTools, Code: deny.BadPeer, What: target, Why: why,
		Mend: "nothing: only the agent's own gateway, or root, may speak here",
	}
	if why == "" {
		r.Code, r.Why = deny.BadToken, "the first request is not auth with the token of this agent's gateway"
	}
	if team != "" {
		r.What = fmt.Sprintf("%s of %s/%s", target, team, agent)
	}
	h.log.AddOf(team, agent, record.Tool, r.What, record.Denied, r)
	return r
}

// Dial connects a gateway to a server and proves who it is.
func Dial(c *wire.Conn, protocol string, version int, token string) error {
	if _, err := c.Greet(protocol, version); err != nil {
		return err
	}
	if err := c.Send(1, VerbAuth, Auth{Token: token}); err != nil {
		return err
	}
	m, files, err := c.Recv()
	closeAll(files)
	switch {
	case err != nil:
		return err
	case m.Verb == VerbDenied:
		var r deny.Reason
		if err := json.Unmarshal(m.Body, &r); err != nil {
			return fmt.Errorf("hub: %s refused: %w", protocol, err)
		}
		return &r
	case m.Verb != wire.VerbOK:
		return fmt.Errorf("hub: %s answered %.40q", protocol, m.Verb)
	}
	return nil
}

func closeAll(files []*os.File) {
	for _, f := range files {
		_ = f.Close()
	}
}
