package gateway

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"strings"
	"time"

	"bulkhead/internal/deny"
	"bulkhead/internal/identity/token"
	"bulkhead/internal/primitive/proc"
	"bulkhead/internal/tool"
)

// tokens checks the tokens of control: from the runtime, and through front,
// which vouches for those that only it can check.
type tokens struct {
	own, front *token.Verifier
}

func newTokens(c *Config) *tokens {
	return &tokens{
		own:   token.NewVerifier(token.Config{Team: c.Team, Agent: c.Agent}),
		front: token.NewVerifier(token.Config{Team: c.Team, Agent: c.Agent, Vouched: true}),
	}
}

// told takes what the warden passes on of control's.
func (t *tokens) told(raw json.RawMessage) error {
	var one token.Trust
	if err := json.Unmarshal(raw, &one); err != nil {
		return fmt.Errorf("gateway: what to trust does not decode: %w", err)
	}
	for _, k := range one.Keys {
		if len(k.Secret) > 0 {
			// It would be in the memory of a process that the agent may capture.
			return fmt.Errorf("gateway: key %.64q comes with its secret; nothing is taken", k.ID)
		}
	}
	if err := t.own.Refresh(one); err != nil {
		return err
	}
	return t.front.Refresh(one)
}

// caller is who shows a token of control. Both are nil when the request shows
// none.
func (t *tokens) caller(r *http.Request) (*tool.Caller, *deny.Reason) {
	text := shown(r)
	v := t.own
	if throughFront(r) {
		v = t.front
	} else if strings.Count(text, ".") != 2 {
		return nil, nil // it is no token of control's
	}
	c, reason := v.Verify(text)
	if reason != nil {
		return nil, reason
	}
	return &tool.Caller{
		Team: c.Team, Agent: c.Agent, Token: c.ID, Key: c.Key, Expires: c.Expires, Domains: c.Allowed(), Rate: c.Quotas.RatePerMinute,
		Quota: tool.Quota{Memory: c.Quotas.MemoryBytes, Storage: c.Quotas.StorageBytes},
	}, nil
}

// still says whether who showed a token may still call, for what is done later in
// its name.
func (t *tokens) still(who tool.Caller) error {
	if who.Token == "" {
		return nil // the agent itself
	}
	err := t.front.Still(who.Token, who.Key, who.Expires) // it knows the keys that only front can check, too
	if errors.Is(err, token.ErrNotTold) {
		return fmt.Errorf("%w: %w", proc.ErrNotKnown, err)
	}
	return err
}

// stillEvery is how soon what a token began ends when it is revoked, has expired, or
// nobody says any more whether it is good.
const stillEvery = time.Second

// whileGood gives a context that ends when the token does: streams and sessions
// outlive the request that showed it.
func (t *tokens) whileGood(ctx context.Context, who tool.Caller) (context.Context, context.CancelFunc) {
	ctx, cancel := context.WithCancel(ctx)
	look := time.AfterFunc(stillEvery, func() {
		again := time.NewTicker(stillEvery)
		defer again.Stop()
		for ctx.Err() == nil {
			if t.still(who) != nil {
				cancel()
			}
			select {
			case <-again.C:
			case <-ctx.Done():
			}
		}
	})
	return ctx, func() {
		look.Stop()
		cancel()
	}
}

type frontKey struct{}

func fromFrontContext(ctx context.Context) context.Context {
	return context.WithValue(ctx, frontKey{}, true)
}

// throughFront says whether the connection was made by front, which is known
// from the socket that it came in on and not from anything that was sent.
func throughFront(r *http.Request) bool { return r.Context().Value(frontKey{}) != nil }
