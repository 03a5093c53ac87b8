package main

import (
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"strings"
	"time"

	"bulkhead/internal/deny"
	"bulkhead/internal/wire"
)

// adapterToken authenticates at the gateway's own socket of the adapter with
// tokens that are not the agent's.
func adapterToken(t *trial) error {
	for _, path := range t.Paths {
		for what, token := range map[string]string{"no token": "", "a token of nobody": strings.Repeat("0", 64)} {
			code, err := authenticate(path, token)
			if err != nil {
				return fmt.Errorf("adapter %s: %w", path, err)
			}
			if code != "" {
				err = refused(code)
			}
			if t.step(what, err) {
				t.saw("the adapter took %s", what)
				return nil
			}
		}
	}
	return nil
}

// authenticate gives the code of the refusal; "" when there was none.
func authenticate(path, token string) (deny.Code, error) {
	c, err := net.DialTimeout("unix", path, patience)
	if err != nil {
		return "", err
	}
	conn := wire.New(c.(*net.UnixConn))
	defer conn.Close()
	if err := c.SetDeadline(time.Now().Add(patience)); err != nil {
		return "", err
	}
	// The adapter's protocol (docs/contracts/messages.md), spelled here: the
	// probe links nothing of the adapter.
	if err := conn.Send(0, wire.VerbHello, wire.Hello{Protocol: "adapter", Version: 1}); err != nil {
		return "", err
	}
	if err := conn.Send(1, "auth", map[string]string{"token": token}); err != nil {
		return "", err
	}
	for {
		m, _, err := conn.Recv()
		if err != nil {
			return "", err
		}
		switch m.Verb {
		case wire.VerbHello:
		case "ok":
			return "", nil
		case "denied":
			var r deny.Reason
			if err := json.Unmarshal(m.Body, &r); err != nil || r.Code == "" {
				return "", errors.Join(errors.New("a denial without a reason"), err)
			}
			return r.Code, nil
		default:
			return "", fmt.Errorf("answered %.40q", m.Verb)
		}
	}
}
