package main

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"strings"
	"sync"
	"syscall"
	"time"

	"bulkhead/internal/deny"
	"bulkhead/internal/wire"
)

// serverKinds are attempts at the host's servers, as a captured gateway speaks
// to them. Their protocols are spelled here (docs/contracts/protocols.md): the
// probe links nothing of them.
func serverKinds() map[string]kind {
	return map[string]kind{
		"server.token":    {do: serverToken},
		"server.append":   {do: serverAppend},
		"server.operator": {do: serverOperator},
	}
}

// request is one thing that is said to a server.
type request struct {
	verb string
	body any
}

// tokens that are nobody's.
func strangers() map[string]string {
	return map[string]string{"no token": "", "a token of nobody": strings.Repeat("0", 64)}
}

// serverToken authenticates at its own socket of a server with tokens that are
// not its own. Names holds the server's name.
func serverToken(t *trial) error {
	if len(t.Names) != 1 {
		return errors.New("the request does not name the server")
	}
	for _, path := range t.Paths {
		for what, token := range strangers() {
			code, err := converse(path, t.Names[0], request{"auth", map[string]string{"token": token}})
			if err != nil {
				return fmt.Errorf("%s: %w", t.Names[0], err)
			}
			if t.step(what, code) {
				t.saw("%s took %s", t.Names[0], what)
				return nil
			}
		}
	}
	return nil
}

// serverAppend adds to the audit log in the name of another, without the token.
func serverAppend(t *trial) error {
	for _, path := range t.Paths {
		for _, name := range t.Names {
			record := map[string]any{"agent": name, "kind": "tool", "verdict": "allowed", "target": "forged"}
			add := request{"append", map[string]any{"list": "forged", "records": []any{map[string]any{"seq": 1, "record": record}}}}
			for what, said := range map[string][]request{
				"a record of " + name + " from nobody":                 {add},
				"a record of " + name + " with a token of nobody":      {{"auth", map[string]string{"token": strings.Repeat("0", 64)}}, add},
				"that everything of " + name + " is taken":             {{"taken", map[string]any{"seq": uint64(1) << 62}}},
				"a record of " + name + " from who says to be " + name: {{"auth", map[string]string{"token": "", "team": "", "agent": name}}, add},
			} {
				code, err := converse(path, "audit", said...)
				if err != nil {
					return fmt.Errorf("audit: %w", err)
				}
				if t.step(what, code) {
					t.saw("audit took %s", what)
					return nil
				}
			}
		}
	}
	return nil
}

// serverOperator speaks as root does, at a gateway's socket.
func serverOperator(t *trial) error {
	for _, path := range t.Paths {
		for _, said := range []request{
			{"tail", map[string]any{"after": -1}},
			{"head", struct{}{}},
			{"admit", map[string]any{"team": "x", "agent": "x", "gatewayID": 1, "tokenHash": strings.Repeat("0", 64)}},
			{"members", struct{}{}},
		} {
			code, err := converse(path, "service", said)
			if err != nil {
				return err
			}
			if t.step("ask for "+said.verb+" as root", code) {
				t.saw("the server answers %s to its member", said.verb)
				return nil
			}
		}
	}
	return nil
}

// oneServer has one attempt at a time speak to servers: each takes a few
// connections of a gateway, and closes further ones unheard.
var oneServer sync.Mutex

// errUnheard is a connection that the server closed before it said hello.
var errUnheard = errors.New("the server has not listened")

// converse says some things one after the other, and gives the first refusal;
// nil when everything was taken. Any other failure says nothing about
// protection.
func converse(path, protocol string, said ...request) (no error, failed error) {
	oneServer.Lock()
	defer oneServer.Unlock()
	for until := time.Now().Add(3 * patience); ; time.Sleep(20 * time.Millisecond) {
		no, failed = talk(path, protocol, said...)
		if !errors.Is(failed, errUnheard) || time.Now().After(until) {
			return no, failed
		}
	}
}

func talk(path, protocol string, said ...request) (no error, failed error) {
	c, err := net.DialTimeout("unix", path, patience)
	if err != nil {
		return nil, err
	}
	conn := wire.New(c.(*net.UnixConn))
	defer conn.Close()
	if err := c.SetDeadline(time.Now().Add(patience)); err != nil {
		return nil, err
	}
	m, _, err := conn.Recv() // both sides begin with hello
	switch {
	case ended(err):
		return nil, errUnheard
	case err != nil:
		return nil, err
	case m.Verb != wire.VerbHello:
		return nil, fmt.Errorf("greeted with %.40q", m.Verb)
	}
	if err := conn.Send(0, wire.VerbHello, wire.Hello{Protocol: protocol, Version: 1}); err != nil {
		return closedOr(err)
	}
	for i, one := range said {
		if err := conn.Send(uint64(i+1), one.verb, one.body); err != nil { // #nosec G115 -- a few
			return closedOr(err)
		}
		m, _, err := conn.Recv()
		if err != nil {
			return closedOr(err)
		}
		switch m.Verb {
		case "ok", "result", "taken", "published", "messages", "subscribed", "topics":
		case "denied":
			var r deny.Reason
			if err := json.Unmarshal(m.Body, &r); err != nil || r.Code == "" {
				return nil, errors.Join(errors.New("a denial without a reason"), err)
			}
			return refused(r.Code), nil
		case wire.VerbError:
			return refused("closed"), nil // it says why, and goes
		default:
			return nil, fmt.Errorf("answered %.40q", m.Verb)
		}
	}
	return nil, nil
}

// ended says whether an error is the end of a connection.
func ended(err error) bool {
	return errors.Is(err, io.EOF) || errors.Is(err, io.ErrUnexpectedEOF) || errors.Is(err, syscall.ECONNRESET) || errors.Is(err, syscall.EPIPE)
}

// closedOr takes the end of a connection that was heard for the refusal that it
// is: who does not greet as a member is not talked to.
func closedOr(err error) (no error, failed error) {
	if ended(err) {
		return refused("closed"), nil
	}
	return nil, err
}
