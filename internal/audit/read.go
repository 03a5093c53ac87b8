package audit

import (
	"bufio"
	"bytes"
	"encoding/json"
	"fmt"
	"io"

	"golang.org/x/mod/sumdb/note"

	"bulkhead/internal/audit/protocol"
)

// Head is the log now.
func (l *Log) Head() protocol.Head {
	l.mu.Lock()
	defer l.mu.Unlock()
	return protocol.Head{Lines: l.state.tree.n, Root: l.state.tree.root().String()}
}

// Tail gives lines after an index.
func (l *Log) Tail(q protocol.Tail) (*protocol.Lines, error) {
	if q.Limit <= 0 || q.Limit > maxLines {
		q.Limit = min(max(q.Limit, 200), maxLines)
	}
	l.mu.Lock()
	n, size := l.state.tree.n, l.size
	from := q.After + 1
	if q.After < 0 {
		from = max(n+q.After, 0)
	}
	if from > n {
		from = n
	}
	at := l.places[min(from/stride, int64(len(l.places))-1)]
	l.mu.Unlock()
	out := &protocol.Lines{Lines: []protocol.Line{}, Position: max(from-1, 0)}
	if n == 0 {
		out.Position = -1
	}
	in := bufio.NewReaderSize(io.NewSectionReader(l.f, at, size-at), 256<<10)
	bytesOf := 0
	for len(out.Lines) < q.Limit && bytesOf < maxTail {
		line, err := in.ReadSlice('\n')
		if err == io.EOF {
			break
		}
		if err != nil {
			return nil, fmt.Errorf("audit: %w", err)
		}
		if bytes.HasPrefix(line, checkpointStart) {
			continue
		}
		var e entry
		if err := json.Unmarshal(line, &e); err != nil {
			return nil, fmt.Errorf("%w: %w", ErrCorrupt, err)
		}
		if e.Index < from {
			continue
		}
		out.Position = e.Index
		if q.Team != "" && e.Team != q.Team || q.Agent != "" && e.Agent != q.Agent {
			continue
		}
		bytesOf += len(line)
		out.Lines = append(out.Lines, protocol.Line{Index: e.Index, Time: e.Time, Team: e.Team, Agent: e.Agent, Seq: e.Seq, Record: e.Record})
	}
	return out, nil
}

// Verify reads the whole log again, as it is on disk, and compares it with what
// is known here and with what root has witnessed.
func (l *Log) Verify(q protocol.Verify) *protocol.Verified {
	l.mu.Lock()
	size, want := l.size, protocol.Head{Lines: l.state.tree.n, Root: l.state.tree.root().String()}
	l.mu.Unlock()
	out := &protocol.Verified{SchemaVersion: 1, Key: l.public, Witnesses: len(q.Witnesses)}
	key, err := note.NewVerifier(l.public)
	if err != nil {
		out.Problem = err.Error()
		return out
	}
	s := newState(key)
	got, err := scan(&upTo{l.f, size}, s, q.Witnesses, func(*entry, int64) {})
	out.Lines, out.Root, out.Checkpoint, out.Covers = s.tree.n, s.tree.root().String(), s.last, s.covers
	switch {
	case err != nil:
		out.Problem = err.Error()
	case got != size || out.Lines != want.Lines || out.Root != want.Root:
		out.Problem = fmt.Sprintf("the file holds %d lines with root %s; %d with root %s were written", out.Lines, out.Root, want.Lines, want.Root)
	}
	return out
}

// upTo is the log as of one moment.
type upTo struct {
	r    io.ReaderAt
	size int64
}

// ReadAt implements io.ReaderAt.
func (u *upTo) ReadAt(b []byte, at int64) (int, error) {
	return io.NewSectionReader(u.r, 0, u.size).ReadAt(b, at)
}
