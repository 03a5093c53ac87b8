// Package ask is how programs inside a runtime ask their agent's gateway.
package ask

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

// Gateway is the agent's gateway, asked with the tools' token.
type Gateway struct{ Socket, Token string }

// FromEnvironment finds the gateway as the shim of this container says.
func FromEnvironment() (*Gateway, error) {
	g := &Gateway{Socket: os.Getenv(wire.EnvGatewaySocket)}
	file := os.Getenv(wire.EnvTokenFile)
	if g.Socket == "" || file == "" {
		return nil, fmt.Errorf("%s and %s are not set: this runs inside the runtime of an agent that has messages or tools", wire.EnvGatewaySocket, wire.EnvTokenFile)
	}
	token, err := os.ReadFile(file) // #nosec G304 G703 -- the caller's own environment, read with the caller's rights
	if err != nil {
		return nil, fmt.Errorf("the token: %w", err)
	}
	g.Token = strings.TrimSpace(string(token))
	return g, nil
}

// Misuse is what the caller wrote wrong. Help is the command that shows how it is
// written.
type Misuse struct {
	Err  error
	Help string
}

func (m *Misuse) Error() string { return m.Err.Error() }

// Unwrap gives the cause.
func (m *Misuse) Unwrap() error { return m.Err }

// Failure is what the gateway answered instead of what was asked.
type Failure struct{ Envelope deny.Envelope }

// Error gives the gateway's own words; what would mend it is in the Envelope.
func (f *Failure) Error() string {
	return deny.WithoutMend(f.Envelope.Message, f.Envelope.PossibleFix)
}

// ExitCode is that of a command which failed for err, and says on standard error
// what would mend it.
func ExitCode(err error) int {
	var m *Misuse
	if errors.As(err, &m) {
		fmt.Fprintf(os.Stderr, "  to mend: see `%s`\n", m.Help)
		return wire.ExitBadInput
	}
	var f *Failure
	if !errors.As(err, &f) {
		return wire.ExitFailed
	}
	fmt.Fprintln(os.Stderr, "  to mend:", f.Envelope.PossibleFix)
	for _, x := range f.Envelope.Fields {
		fmt.Fprintf(os.Stderr, "  %s: %s\n", x.Name, x.Why)
	}
	switch f.Envelope.StatusCode {
	case 400, 409, 413:
		return wire.ExitBadInput
	case 401, 403:
		return wire.ExitRefused
	}
	return wire.ExitFailed
}

// Call sends a request and gives the answer's JSON. A refusal is a *Failure. A
// json.RawMessage goes as it is.
func (g *Gateway) Call(ctx context.Context, method, path string, body any) ([]byte, error) {
	q := plainhttp.Request{
		Method: method, Path: path, Host: wire.OwnName, Header: []string{"Authorization", "Bearer " + g.Token, "Content-Type", "application/json"},
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
	a, err := plainhttp.Do(ctx, "unix", g.Socket, q, false)
	if err != nil {
		return nil, fmt.Errorf("the agent's gateway: %w", err)
	}
	if a.Status >= 300 {
		f := &Failure{}
		if json.Unmarshal(a.Body, &f.Envelope) != nil || f.Envelope.Message == "" {
			return nil, fmt.Errorf("the agent's gateway answered %d to %s %s", a.Status, method, path)
		}
		return nil, f
	}
	return a.Body, nil
}
