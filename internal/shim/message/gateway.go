package message

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"strings"

	"bulkhead/internal/deny"
	"bulkhead/internal/shim/plainhttp"
	"bulkhead/internal/wire"
)

// gateway is the agent's gateway, asked with the tools' token.
type gateway struct{ socket, token string }

// fromEnvironment finds the gateway as the shim of this container says.
func fromEnvironment() (*gateway, error) {
	g := &gateway{socket: os.Getenv(wire.EnvGatewaySocket)}
	file := os.Getenv(wire.EnvTokenFile)
	if g.socket == "" || file == "" {
		return nil, fmt.Errorf("%s and %s are not set: this runs inside the runtime of an agent that has messages", wire.EnvGatewaySocket, wire.EnvTokenFile)
	}
	token, err := os.ReadFile(file) // #nosec G304 G703 -- the caller's own environment, read with the caller's rights
	if err != nil {
		return nil, fmt.Errorf("the token: %w", err)
	}
	g.token = strings.TrimSpace(string(token))
	return g, nil
}

// failure is what the gateway answered instead of what was asked.
type failure struct{ envelope deny.Envelope }

func (f *failure) Error() string { return f.envelope.Message }

// call sends a request and gives the answer's JSON. A refusal is a *failure.
func (g *gateway) call(ctx context.Context, method, path string, body any) ([]byte, error) {
	q := plainhttp.Request{
		Method: method, Path: path, Host: wire.OwnName, Header: []string{"Authorization", "Bearer " + g.token, "Content-Type", "application/json"},
	}
	if body != nil {
		var b strings.Builder
		e := json.NewEncoder(&b)
		e.SetEscapeHTML(false)
		if err := e.Encode(body); err != nil {
			return nil, err
		}
		q.Body = []byte(b.String())
	}
	a, err := plainhttp.Do(ctx, "unix", g.socket, q, false)
	if err != nil {
		return nil, fmt.Errorf("the agent's gateway: %w", err)
	}
	if a.Status >= 300 {
		f := &failure{}
		if json.Unmarshal(a.Body, &f.envelope) != nil || f.envelope.Message == "" {
			return nil, fmt.Errorf("the agent's gateway answered %d to %s %s", a.Status, method, path)
		}
		return nil, f
	}
	return a.Body, nil
}

// items are the answers for several leases.
type items struct {
	Results []struct {
		Status int            `json:"status"`
		Error  *deny.Envelope `json:"error"`
	} `json:"results"`
}

// each gives the first refusal among several answers.
func each(body []byte) error {
	var all items
	if err := json.Unmarshal(body, &all); err != nil {
		return fmt.Errorf("the gateway's answer: %w", err)
	}
	for _, r := range all.Results {
		if r.Error != nil {
			return &failure{*r.Error}
		}
	}
	if len(all.Results) == 0 {
		return errors.New("the gateway's answer has no results")
	}
	return nil
}
