package audit

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"

	"golang.org/x/sys/unix"

	"bulkhead/internal/audit/protocol"
)

// ErrEnded says that the log takes nothing any more.
var ErrEnded = errors.New("audit: it is stopping")

// Close ends the writer and lets go of the file.
func (l *Log) Close() error {
	l.stop()
	<-l.ended
	return l.f.Close()
}

// Ended is closed when the log takes nothing any more; Err says why.
func (l *Log) Ended() <-chan struct{} { return l.ended }

// Err is why the log takes nothing any more.
func (l *Log) Err() error {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.broken
}

// Append returns when the records are on disk under a checkpoint. Those whose
// numbers were taken before are left out.
func (l *Log) Append(ctx context.Context, team, agent string, q protocol.Append) (*protocol.Taken, error) {
	if q.List == "" || len(q.List) > 64 || len(q.Records) == 0 || len(q.Records) > protocol.MaxRecords {
		return nil, fmt.Errorf("audit: %d records of list %.64q are not taken at once", len(q.Records), q.List)
	}
	r := &request{source: source{team, agent, q.List}, recs: make([]protocol.Record, len(q.Records)), done: make(chan error, 1)}
	last := uint64(0)
	for i, one := range q.Records {
		if one.Seq <= last {
			return nil, fmt.Errorf("audit: record %d comes after %d", one.Seq, last)
		}
		text, err := compact(one.Record)
		if err != nil {
			return nil, err
		}
		last, r.recs[i] = one.Seq, protocol.Record{Seq: one.Seq, Record: text}
	}
	select {
	case l.requests <- r:
	case <-l.ended:
		return nil, errors.Join(ErrEnded, l.Err())
	case <-ctx.Done():
		return nil, ctx.Err()
	}
	// Taken up: the writer answers in any case.
	if err := <-r.done; err != nil {
		return nil, err
	}
	return &protocol.Taken{Seq: last}, nil
}

// write is the one writer.
func (l *Log) write(ctx context.Context) {
	defer close(l.ended)
	for {
		var all []*request
		select {
		case <-ctx.Done():
			return
		case r := <-l.requests:
			all = append(all, r)
		}
		size := all[0].size()
	more:
		for len(all) < batch && size < maxBatch/2 {
			select {
			case r := <-l.requests:
				all, size = append(all, r), size+r.size()
			default:
				break more
			}
		}
		all = l.within(all)
		if len(all) == 0 {
			continue
		}
		err := l.commit(all)
		for _, r := range all {
			r.done <- err
		}
		if l.Err() != nil {
			return
		}
	}
}

func (r *request) size() (n int) {
	for _, one := range r.recs {
		n += len(one.Record) + 512
	}
	return n
}

// commit has a batch on disk, or nothing of it.
func (l *Log) commit(all []*request) error {
	if err := l.room(); err != nil {
		return err
	}
	l.mu.Lock()
	next := *l.state
	next.tree = l.state.tree.clone()
	l.mu.Unlock()
	seqs, wrote := map[source]uint64{}, map[member]int64{}
	var out bytes.Buffer
	var places []int64
	for _, r := range all {
		last, ok := seqs[r.source]
		if !ok {
			last = next.seqs[r.source]
		}
		for _, one := range r.recs {
			if one.Seq <= last {
				continue
			}
			line, err := json.Marshal(entry{
				Index: next.tree.n, Time: l.now().UTC(), Team: r.source.team, Agent: r.source.agent, List: r.source.list, Seq: one.Seq, Record: one.Record,
			})
			if err != nil {
				return fmt.Errorf("audit: %w", err)
			}
			if next.tree.n%stride == 0 && next.tree.n > 0 {
				places = append(places, l.size+int64(out.Len()))
			}
			next.tree.add(line)
			out.Write(line)
			out.WriteByte('\n')
			wrote[r.source.member()] += int64(len(line))
			last = one.Seq
		}
		seqs[r.source] = last
	}
	if out.Len() == 0 {
		return nil // all of it is there already
	}
	line, err := signed(&next.tree, l.signer)
	if err != nil {
		return err
	}
	out.Write(line)
	if err := l.put(out.Bytes()); err != nil {
		return err
	}
	var c checkpoint
	if err := json.Unmarshal(line, &c); err != nil {
		return fmt.Errorf("audit: %w", err)
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	l.size += int64(out.Len())
	l.places = append(l.places, places...)
	next.last, next.covers, next.root = c.Note, next.tree.n, next.tree.root()
	for s, seq := range seqs {
		next.seqs[s] = seq // the map is the same: only this goroutine changes it
	}
	for m, n := range wrote {
		next.bytes[m] += n
	}
	*l.state = next
	return nil
}

// put appends to the file. After a failure the file ends where it did; when even
// that fails, or a sync did, nothing more is taken: what is on disk is not known.
func (l *Log) put(data []byte) error {
	_, err := l.f.WriteAt(data, l.size)
	full := errors.Is(err, unix.ENOSPC) || errors.Is(err, unix.EDQUOT)
	if err == nil {
		if err = l.f.Sync(); err == nil {
			return nil
		}
	}
	if terr := l.f.Truncate(l.size); terr != nil || !full {
		l.mu.Lock()
		l.broken = fmt.Errorf("audit: write: %w", err)
		l.mu.Unlock()
	}
	return fmt.Errorf("audit: it is not on disk: %w", err)
}
