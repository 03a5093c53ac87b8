// Package storage keeps what one agent may put on disk: bytes and files over
// all tools that store for it (fs and db share the manifest's tools.storage).
//
// A [Budget] lives in memory. Whoever stores counts what is there at its start
// ([Budget.Count]), takes before it writes and gives back what it did not use
// or removed. So the sum is exact at any concurrency, and nobody ever writes
// first and finds out later.
//
// A database cannot say beforehand by how much a statement will let it grow.
// It borrows all that is left ([Budget.Borrow]) and settles afterwards; who
// needs more than is there meanwhile waits for that, and is not refused.
package storage

import (
	"context"
	"fmt"
	"sync"

	"bulkhead/internal/deny"
	"bulkhead/internal/tool"
)

// Limits bound a budget. A limit of 0 allows nothing.
type Limits struct {
	Bytes int64
	Files int64 // files and folders: what takes an inode
}

// DefaultLimits are those for a manifest's tools.storage in bytes: a file or
// folder for every 8 KiB, within 1,000 and 100,000, so that empty files cannot
// use up the inodes of a disk.
func DefaultLimits(bytes int64) Limits {
	return Limits{Bytes: bytes, Files: min(max(bytes>>13, 1000), 100_000)}
}

// Budget is what an agent may still store. Its methods may be called
// concurrently.
type Budget struct {
	limits Limits

	mu    sync.Mutex
	bytes int64         // taken
	files int64         // taken
	lent  chan struct{} // closed when the loan is settled; nil: nothing is lent
}

// New makes a budget of which nothing is taken.
func New(l Limits) *Budget { return &Budget{limits: l} }

// Limits gives what the budget allows.
func (b *Budget) Limits() Limits { return b.limits }

// Used gives what is taken.
func (b *Budget) Used() (bytes, files int64) {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.bytes, b.files
}

// Count takes what is on disk already, even above the limits: then nothing can
// be taken until enough is given back.
func (b *Budget) Count(bytes, files int64) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.bytes += bytes
	b.files += files
}

// Give puts back what was taken.
func (b *Budget) Give(bytes, files int64) { b.Count(-bytes, -files) }

// Take takes both or neither. Negative amounts are given back, which cannot
// fail. The error is a *deny.Reason for what, or the context's while another
// holds a loan.
func (b *Budget) Take(ctx context.Context, what string, bytes, files int64) error {
	for {
		reason, lent := b.take(ctx, what, bytes, files)
		if reason == nil {
			return nil
		}
		if lent == nil {
			return reason
		}
		select {
		case <-lent:
		case <-ctx.Done():
			return fmt.Errorf("%s: wait for the storage that a database transaction holds: %w", what, ctx.Err())
		}
	}
}

func (b *Budget) take(ctx context.Context, what string, bytes, files int64) (*deny.Reason, chan struct{}) {
	limit := b.limit(ctx)
	b.mu.Lock()
	defer b.mu.Unlock()
	switch {
	case files > 0 && b.files+files > b.limits.Files:
		return tool.Refuse(deny.ToolQuota, what, fmt.Sprintf("%d of the %d files and folders that this agent may have are there", b.files, b.limits.Files),
			"delete files that are not needed; or raise tools.storage of the agent in bulkhead.yaml"), nil
	case bytes > 0 && b.bytes+bytes > limit:
		return b.full(what, bytes, limit-b.bytes, limit), b.lent
	}
	b.bytes += bytes
	b.files += files
	return nil, nil
}

// limit is how many bytes whoever ctx is of may leave taken: the agent's, or
// fewer when the call's token says so.
func (b *Budget) limit(ctx context.Context) int64 {
	return tool.Narrow(b.limits.Bytes, tool.QuotaOf(ctx).Storage)
}

// Full is the refusal of a tool that found out by itself, within a loan.
func (b *Budget) Full(ctx context.Context, what string) *deny.Reason {
	return b.full(what, 0, 0, b.limit(ctx))
}

func (b *Budget) full(what string, need, left, limit int64) *deny.Reason {
	why := fmt.Sprintf("the %d bytes of storage that this agent may use, or those of the disk below, are used up", limit)
	if need > 0 {
		why = fmt.Sprintf("%d bytes more are needed, and %d are left of the %d that this agent may store", need, max(left, 0), limit)
	}
	mend := "delete files or rows that are not needed; or raise tools.storage of the agent in bulkhead.yaml"
	if limit < b.limits.Bytes {
		why, mend = why+"; this token allows no more", "delete files or rows that are not needed; or get a token that allows more (storageQuotaBytes)"
	}
	return tool.Refuse(deny.ToolQuota, what, why, mend)
}

// Borrow takes all bytes that are left for whoever ctx is of and says how many. settle must be
// called once, with what is kept of them; a negative number gives back more
// than was lent. One loan is out at a time; others wait for it.
func (b *Budget) Borrow(ctx context.Context) (n int64, settle func(kept int64), err error) {
	for {
		b.mu.Lock()
		lent := b.lent
		if lent == nil {
			break
		}
		b.mu.Unlock()
		select {
		case <-lent:
		case <-ctx.Done():
			return 0, nil, fmt.Errorf("wait for the storage that another transaction holds: %w", ctx.Err())
		}
	}
	defer b.mu.Unlock()
	n = max(b.limit(ctx)-b.bytes, 0)
	done := make(chan struct{})
	b.bytes += n
	b.lent = done
	return n, func(kept int64) {
		b.mu.Lock()
		b.bytes += kept - n
		b.lent = nil
		b.mu.Unlock()
		close(done)
	}, nil
}
