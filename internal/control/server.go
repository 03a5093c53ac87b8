package control

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net"

	"bulkhead/internal/control/protocol"
	"bulkhead/internal/hub"
)

// Serve answers root on ln until ctx ends.
func Serve(ctx context.Context, c *Control, ln *net.UnixListener, out io.Writer) error {
	return hub.New(hub.Config{Out: out, Operator: answers(c)}).Run(ctx, ln)
}

// answers are what root may ask, by verb.
func answers(c *Control) map[string]hub.Answer {
	return map[string]hub.Answer{
		protocol.VerbIssue:  answer(c.Issue),
		protocol.VerbList:   answer(func(q protocol.List) (*protocol.Tokens, error) { return c.List(q), nil }),
		protocol.VerbRevoke: answer(c.Revoke),
		protocol.VerbRotate: answer(c.Rotate),
		protocol.VerbTrust:  answer(c.Trust),
		protocol.VerbAdmin:  answer(c.Admin),
	}
}

func answer[Q, R any](do func(Q) (R, error)) hub.Answer {
	return func(_ context.Context, body json.RawMessage) (any, error) {
		var q Q
		if err := json.Unmarshal(body, &q); err != nil {
			return nil, fmt.Errorf("control: the request does not decode: %w", err)
		}
		return do(q)
	}
}
