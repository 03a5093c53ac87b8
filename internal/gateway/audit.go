package gateway

import (
	"context"
	"sync"

	"bulkhead/internal/audit/protocol"
	"bulkhead/internal/audit/sender"
	"bulkhead/internal/deny"
	"bulkhead/internal/record"
	"bulkhead/internal/store"
	"bulkhead/internal/tool"
)

// audit carries the store's records to audit until the returned function is
// called, which waits for its end.
func (b *toolbox) audit(st *store.Store) (end func() error) {
	cfg := b.means.cfg
	ctx, cancel := context.WithCancel(context.Background())
	var work sync.WaitGroup
	trouble := func(err error) {
		r := tool.Refuse(deny.ToolUnavailable, "audit.sock", err.Error(), "records wait in this gateway; `bulkhead status` shows whether audit runs")
		b.means.log.Add(cfg.Agent, record.Tool, "audit.sock", record.Failed, r)
	}
	work.Go(func() {
		if err := sender.Run(ctx, sender.Config{
			Socket: cfg.Audit.Socket, Token: cfg.Audit.Token, Spool: spool{st.Spool()}, Trouble: trouble,
		}); err != nil {
			trouble(err)
		}
	})
	return func() error {
		cancel()
		work.Wait()
		return nil
	}
}

// spool is the store's, as the sender takes it.
type spool struct{ store.Spool }

// Next implements sender.Spool.
func (s spool) Next(ctx context.Context, after uint64, max int) ([]protocol.Record, error) {
	all, err := s.Spool.Next(ctx, after, max)
	out := make([]protocol.Record, len(all))
	for i, e := range all {
		out[i] = protocol.Record(e)
	}
	return out, err
}
