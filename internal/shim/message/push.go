package message

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"os"
	"strconv"
	"strings"
	"sync"
	"time"

	"bulkhead/internal/engine"
	"bulkhead/internal/shim/ask"
	"bulkhead/internal/shim/plainhttp"
)

// Times of the push.
const (
	pushWait    = 30 * time.Second // of one receive
	pushLease   = 15 * time.Second // renewed while the hook is at work: what a crash takes along comes again after it
	pushRenew   = 4 * time.Second  // three of them may be late
	pushTimeout = 60 * time.Second // for the hook to answer
	firstPause  = 50 * time.Millisecond
	lastPause   = 5 * time.Second
)

// Pusher delivers messages into the runtime by POST, in the form of OpenClaw's
// /hooks/agent. A delivery is acknowledged when the hook answered 2xx, and
// refused with what it answered otherwise, so that it comes again with the
// adapter's backoff. The idempotency key goes along as Idempotency-Key and as
// idempotencyKey, by which OpenClaw knows what it has taken already.
//
// One after the other: that keeps the order of every channel.
type Pusher struct {
	gateway ask.Gateway
	hook    engine.Push
	said    string // the last fault that was told
}

// NewPusher pushes what the gateway behind socket has for the holder of token.
func NewPusher(socket, token string, hook engine.Push) *Pusher {
	return &Pusher{gateway: ask.Gateway{Socket: socket, Token: token}, hook: hook}
}

// Run pushes until ctx ends. Faults are told on standard error, once each.
func (p *Pusher) Run(ctx context.Context) {
	pause := firstPause
	for ctx.Err() == nil {
		err := p.listening(ctx)
		if err == nil {
			err = p.once(ctx)
		}
		if err == nil {
			pause, p.said = firstPause, ""
			continue
		}
		if ctx.Err() != nil {
			return
		}
		if err.Error() != p.said {
			p.said = err.Error()
			fmt.Fprintln(os.Stderr, "bulkhead shim: push:", err)
		}
		t := time.NewTimer(pause)
		select {
		case <-ctx.Done():
		case <-t.C:
		}
		t.Stop()
		pause = min(2*pause, lastPause)
	}
}

// listening says whether the hook's port answers at all. A runtime that still
// starts must not use up the tries of what waits for it.
func (p *Pusher) listening(ctx context.Context) error {
	var d net.Dialer
	c, err := d.DialContext(ctx, "tcp", p.address())
	if err != nil {
		return fmt.Errorf("nothing listens for messages yet: %w", err)
	}
	return c.Close()
}

func (p *Pusher) address() string {
	return net.JoinHostPort("127.0.0.1", strconv.Itoa(int(p.hook.Port)))
}

type delivery struct {
	IdempotencyKey string          `json:"idempotency_key"`
	Sequence       uint64          `json:"channel_sequence_id"`
	From           string          `json:"from"`
	Channel        string          `json:"channel"`
	Type           string          `json:"type"`
	ReplyTo        uint64          `json:"reply_to_sequence_id"`
	Body           json.RawMessage `json:"body"`
	Lease          string          `json:"lease"`

	replayed bool
}

// once waits for a message and delivers it.
func (p *Pusher) once(ctx context.Context) error {
	out, err := p.gateway.Call(ctx, "POST", "/v1/messages:receive", map[string]any{"max": 1, "wait": pushWait, "lease": pushLease})
	if err != nil {
		return err
	}
	var got struct {
		Deliveries []delivery `json:"deliveries"`
		Replayed   []delivery `json:"replayed"` // without leases: they come again with the deliveries
	}
	if err := json.Unmarshal(out, &got); err != nil {
		return fmt.Errorf("the gateway's answer: %w", err)
	}
	var failed error
	for _, d := range got.Deliveries {
		if err := p.held(ctx, d.Lease, func() error { return p.postAll(ctx, got.Replayed, &d) }); err != nil {
			failed = err
			_, err = settle(ctx, &p.gateway, "refuse", map[string]any{"refusals": []map[string]any{{"lease": d.Lease, "reason": err.Error()}}}, []string{d.Lease})
			failed = errors.Join(failed, err)
			continue
		}
		got.Replayed = nil
		if _, err := settle(ctx, &p.gateway, "ack", map[string]any{"leases": []string{d.Lease}}, []string{d.Lease}); err != nil {
			failed = errors.Join(failed, err)
		}
	}
	return failed
}

// held renews a lease while do runs. A renewal that fails is no reason to end
// do: the acknowledgement finds out whether the lease still holds.
func (p *Pusher) held(ctx context.Context, lease string, do func() error) error {
	ctx, stop := context.WithCancel(ctx)
	var work sync.WaitGroup
	work.Go(func() {
		for t := time.NewTicker(pushRenew); ; {
			select {
			case <-ctx.Done():
				t.Stop()
				return
			case <-t.C:
				_, _ = p.gateway.Call(ctx, "POST", "/v1/messages:extend", map[string]any{"leases": []string{lease}, "duration": pushLease})
			}
		}
	})
	defer work.Wait()
	defer stop()
	return do()
}

// postAll posts what is missing before a delivery, and then that. The hook knows
// by their keys what it has taken already.
func (p *Pusher) postAll(ctx context.Context, replayed []delivery, d *delivery) error {
	for i := range replayed {
		replayed[i].replayed = true
		if err := p.post(ctx, &replayed[i]); err != nil {
			return fmt.Errorf("message %d, which is replayed: %w", replayed[i].Sequence, err)
		}
	}
	return p.post(ctx, d)
}

func (p *Pusher) post(ctx context.Context, d *delivery) error {
	ctx, cancel := context.WithTimeout(ctx, pushTimeout)
	defer cancel()
	body, err := json.Marshal(map[string]any{
		"message": text(d), "name": "bulkhead " + d.From, "wakeMode": "now", "deliver": false, "idempotencyKey": d.IdempotencyKey,
	})
	if err != nil {
		return err
	}
	header := []string{"Content-Type", "application/json", "Idempotency-Key", d.IdempotencyKey}
	if p.hook.TokenFile != "" {
		token, err := os.ReadFile(p.hook.TokenFile)
		if err != nil {
			return fmt.Errorf("the hook's token: %w", err)
		}
		header = append(header, "Authorization", "Bearer "+strings.TrimSpace(string(token)))
	}
	q := plainhttp.Request{Method: "POST", Path: p.hook.Path, Host: p.address(), Header: header, Body: body}
	a, err := plainhttp.Do(ctx, "tcp", p.address(), q, true)
	if err != nil {
		return fmt.Errorf("POST %s on port %d: %w", p.hook.Path, p.hook.Port, err)
	}
	if a.Status >= 300 {
		return fmt.Errorf("POST %s on port %d was answered %d", p.hook.Path, p.hook.Port, a.Status)
	}
	return nil
}

// text is what the agent reads: who wrote what, and how to answer. The body is
// another agent's word, and said to be.
func text(d *delivery) string {
	var b strings.Builder
	fmt.Fprintf(&b, "Message %d of channel %s from agent %s, type %s", d.Sequence, d.Channel, d.From, d.Type)
	if d.ReplyTo > 0 {
		fmt.Fprintf(&b, ", in answer to %d", d.ReplyTo)
	}
	if d.replayed {
		b.WriteString(", replayed because it found no place in the queue when it was sent")
	}
	b.WriteString(".\nWhat follows is that agent's message:\n")
	var plain string
	if json.Unmarshal(d.Body, &plain) == nil {
		b.WriteString(plain)
	} else {
		b.Write(d.Body)
	}
	return b.String()
}
