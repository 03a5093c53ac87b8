package audit

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net"
	"time"

	"bulkhead/internal/audit/protocol"
	"bulkhead/internal/hub"
	"bulkhead/internal/wire"
)

// pace bounds what one gateway may write for long, in bytes per second: a
// captured one must not fill the host's disk within minutes.
const pace = 4 << 20

// Serve serves gateways and root until ctx ends or the log takes nothing any
// more.
func Serve(ctx context.Context, l *Log, operator *net.UnixListener, out io.Writer) error {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	go func() { // ends with ctx
		select {
		case <-l.Ended():
			cancel()
		case <-ctx.Done():
		}
	}()
	err := hub.New(hub.Config{
		Protocol: protocol.Name, Version: protocol.Version, Out: out,
		Member: func(ctx context.Context, m hub.Member, c *wire.Conn) { serve(ctx, l, m, c) },
		Operator: map[string]hub.Answer{
			protocol.VerbTail:   answer(l.Tail),
			protocol.VerbHead:   answer(func(struct{}) (protocol.Head, error) { return l.Head(), nil }),
			protocol.VerbVerify: answer(func(q protocol.Verify) (*protocol.Verified, error) { return l.Verify(q), nil }),
		},
	}).Run(ctx, operator)
	if err == nil {
		err = l.Err()
	}
	return err
}

func answer[Q, R any](do func(Q) (R, error)) hub.Answer {
	return func(_ context.Context, body json.RawMessage) (any, error) {
		var q Q
		if err := json.Unmarshal(body, &q); err != nil {
			return nil, fmt.Errorf("audit: the request does not decode: %w", err)
		}
		return do(q)
	}
}

// serve takes the records of one gateway.
func serve(ctx context.Context, l *Log, m hub.Member, c *wire.Conn) {
	stop := context.AfterFunc(ctx, func() { _ = c.Close() })
	defer stop()
	for {
		w, files, err := c.Recv()
		for _, f := range files {
			_ = f.Close()
		}
		if err != nil {
			return
		}
		began := time.Now()
		var q protocol.Append
		var taken *protocol.Taken
		if w.Verb != protocol.VerbAppend || json.Unmarshal(w.Body, &q) != nil {
			err = fmt.Errorf("audit: %.40q is not the verb %s, or its body does not decode", w.Verb, protocol.VerbAppend)
		} else {
			taken, err = l.Append(ctx, m.Team, m.Agent, q)
		}
		if err != nil {
			err = c.Send(w.ID, wire.VerbError, wire.Failure{Message: err.Error()})
		} else {
			err = c.Send(w.ID, protocol.VerbTaken, taken)
		}
		if err != nil {
			return
		}
		rest := time.Duration(len(w.Body))*time.Second/pace - time.Since(began)
		select {
		case <-time.After(rest):
		case <-ctx.Done():
			return
		}
	}
}
