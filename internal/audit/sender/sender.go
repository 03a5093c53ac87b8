// Package sender carries a gateway's records to audit, one after the other and
// each until it is taken.
//
// What waits is in the gateway's own store, so nothing is lost when audit or the
// gateway ends. While audit is away the list grows up to that store's bound.
package sender

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"time"

	"bulkhead/internal/audit/protocol"
	"bulkhead/internal/hub"
	"bulkhead/internal/wire"
)

// Spool is the list of records that wait, in the gateway's own store.
type Spool interface {
	// List names the list. It is kept with the records: when their store is made anew,
	// so are numbers and name.
	List(ctx context.Context) (string, error)
	// Next waits for records whose numbers are above after, at most max of them,
	// oldest first.
	Next(ctx context.Context, after uint64, max int) ([]protocol.Record, error)
	// Done says that audit has taken everything up to seq. Afterwards none of
	// them need be kept.
	Done(ctx context.Context, seq uint64) error
}

// Config is one gateway's.
type Config struct {
	Socket string // of audit, as the gateway sees it
	Token  string
	Spool  Spool
	// Trouble is told why records wait, at most once for each kind.
	Trouble func(error)
}

// Bounds.
const (
	batch      = 256
	maxBytes   = 2 << 20 // of one frame's records
	answerTime = 30 * time.Second
	backoff    = 100 * time.Millisecond
	maxBackoff = 5 * time.Second
)

// Run sends until ctx ends.
func Run(ctx context.Context, cfg Config) error {
	list := ""
	wait, told := backoff, ""
	for ctx.Err() == nil {
		var sent bool
		var err error
		if list == "" {
			list, err = cfg.Spool.List(ctx)
		}
		if err == nil {
			sent, err = send(ctx, &cfg, list)
		}
		if ctx.Err() != nil {
			break
		}
		if sent {
			wait, told = backoff, ""
		}
		if err != nil && err.Error() != told && cfg.Trouble != nil {
			told = err.Error()
			cfg.Trouble(err)
		}
		select {
		case <-ctx.Done():
		case <-time.After(wait):
		}
		wait = min(2*wait, maxBackoff)
	}
	return nil //nolint:nilerr // what failed last was told as trouble; ctx ended
}

// send uses one connection for as long as it works, and says whether something
// was taken over it.
func send(ctx context.Context, cfg *Config, list string) (sent bool, err error) {
	var d net.Dialer
	nc, err := d.DialContext(ctx, "unix", cfg.Socket)
	if err != nil {
		return false, fmt.Errorf("audit is not there: %w", err)
	}
	u, ok := nc.(*net.UnixConn)
	if !ok {
		return false, errors.Join(errors.New("audit: not a unix socket"), nc.Close())
	}
	c := wire.New(u)
	defer func() { _ = c.Close() }()
	stop := context.AfterFunc(ctx, func() { _ = u.Close() })
	defer stop()
	_ = u.SetDeadline(time.Now().Add(answerTime))
	if err := hub.Dial(c, protocol.Name, protocol.Version, cfg.Token); err != nil {
		return false, fmt.Errorf("audit does not let this gateway in: %w", err)
	}
	_ = u.SetDeadline(time.Time{})
	after := uint64(0)
	for id := uint64(2); ; id++ {
		recs, err := cfg.Spool.Next(ctx, after, batch)
		if err != nil || len(recs) == 0 {
			return sent, err
		}
		recs = fitting(recs)
		last := recs[len(recs)-1].Seq
		_ = u.SetDeadline(time.Now().Add(answerTime))
		if err := give(c, id, list, recs, last); err != nil {
			return sent, err
		}
		_ = u.SetDeadline(time.Time{})
		if err := cfg.Spool.Done(ctx, last); err != nil {
			return sent, err
		}
		sent, after = true, last
	}
}

// fitting are as many as one frame may hold, one at least.
func fitting(recs []protocol.Record) []protocol.Record {
	size := 0
	for i := range recs {
		if size += len(recs[i].Record) + 64; size > maxBytes && i > 0 {
			return recs[:i]
		}
	}
	return recs
}

// give sends records and waits until they are taken.
func give(c *wire.Conn, id uint64, list string, recs []protocol.Record, last uint64) error {
	if err := c.Send(id, protocol.VerbAppend, protocol.Append{List: list, Records: recs}); err != nil {
		return err
	}
	m, files, err := c.Recv()
	for _, f := range files {
		_ = f.Close()
	}
	if err != nil {
		return fmt.Errorf("audit did not answer: %w", err)
	}
	if m.Verb == wire.VerbError {
		var f wire.Failure
		if err := json.Unmarshal(m.Body, &f); err != nil {
			return fmt.Errorf("audit: unreadable error: %w", err)
		}
		return errors.New(f.Message)
	}
	var t protocol.Taken
	if err := json.Unmarshal(m.Body, &t); err != nil || m.Verb != protocol.VerbTaken || m.ID != id || t.Seq < last {
		return fmt.Errorf("audit answered %.40q up to %d, not %d", m.Verb, t.Seq, last)
	}
	return nil
}
