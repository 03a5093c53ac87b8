package store

import (
	"context"
	"database/sql/driver"
	"hash/maphash"
)

// The index of idempotency keys is cut into pieces by the messages' order
// (schema.go), because random keys in one large index dirty a page of it with
// every message. To know in which piece to look, and for a new key that there
// is none, seen keeps a Bloom filter of each segment of messages in memory.
//
// A filter is never wrong about a key that it has not seen. A segment whose
// filter was not read yet has to be looked at on disk.
type seen struct {
	seed     maphash.Seed
	segments []*segment // by the message's id >> segmentBits; nil: not read yet
}

const (
	pieceBits   = 10 // messages in one piece of the index; migrations say the same
	segmentBits = 14 // messages in one filter

	// A block is a cache line; a key sets some bits of one block. With 16 bits
	// for each key about one of 700 is taken for one that was seen.
	blockBits    = 9
	segmentBlock = 1 << (segmentBits + 4 - blockBits)
	probes       = 6
)

// segment is a blocked Bloom filter.
type segment [segmentBlock][1 << blockBits / 64]uint64

func newSeen() *seen { return &seen{seed: maphash.MakeSeed()} }

// hash is keyed, so that no sender can choose keys that fill a filter.
func (s *seen) hash(k senderKey) uint64 { return maphash.Comparable(s.seed, k) }

func (f *segment) add(h uint64) {
	b := &f[h%segmentBlock]
	h /= segmentBlock
	for range probes {
		b[h%(1<<blockBits)/64] |= 1 << (h % 64)
		h >>= blockBits
	}
}

func (f *segment) has(h uint64) bool {
	b := &f[h%segmentBlock]
	h /= segmentBlock
	for range probes {
		if b[h%(1<<blockBits)/64]&(1<<(h%64)) == 0 {
			return false
		}
		h >>= blockBits
	}
	return true
}

// add remembers the key of a new message.
func (s *seen) add(id int64, k senderKey) {
	i := int(id >> segmentBits)
	if i >= len(s.segments) {
		// Ids are given one by one: what begins here was not on disk before.
		s.reserve(id)
		s.segments[i] = new(segment)
	}
	if f := s.segments[i]; f != nil {
		f.add(s.hash(k))
	}
}

// reserve makes room for the segments up to the message id, not read yet.
func (s *seen) reserve(id int64) {
	for int64(len(s.segments)) <= id>>segmentBits {
		s.segments = append(s.segments, nil)
	}
}

// find looks for the message that a sender gave a key, the newest segment first.
func (s *seen) find(c *conn, k senderKey, row func([]driver.Value) error) error {
	h := s.hash(k)
	for i := len(s.segments) - 1; i >= 0; i-- {
		if f := s.segments[i]; f != nil && !f.has(h) {
			continue
		}
		found := false
		first := int64(i) << (segmentBits - pieceBits)
		if err := c.query(findKey, func(values []driver.Value) error {
			found = true
			return row(values)
		}, first, first+1<<(segmentBits-pieceBits), k.sender, k.key[:]); err != nil || found {
			return err
		}
	}
	return nil
}

const findKey = `WITH RECURSIVE piece (n) AS (VALUES (?1) UNION ALL SELECT n + 1 FROM piece WHERE n + 1 < ?2)
	SELECT channel.name, seq, message.time, type, priority, reply, body
	FROM piece CROSS JOIN message INDEXED BY message_key ON message.id >> 10 = piece.n AND sender = ?3 AND key = ?4
		CROSS JOIN channel ON channel.id = channel`

// keysOf are the keys of a piece; all that is asked for is in the index.
const keysOf = "SELECT sender, key FROM message INDEXED BY message_key WHERE id >> 10 = ?"

// readSegment makes the filter of what is on disk of a segment.
func (s *seen) readSegment(c *conn, i int) (*segment, error) {
	f := new(segment)
	for p := int64(i) << (segmentBits - pieceBits); p < int64(i+1)<<(segmentBits-pieceBits); p++ {
		if err := c.query(keysOf, func(row []driver.Value) error {
			k := senderKey{sender: integer(row[0])}
			copy(k.key[:], raw(row[1]))
			f.add(s.hash(k))
			return nil
		}, p); err != nil {
			return nil, err
		}
	}
	return f, nil
}

// remember reads the filters of older messages, the newest first, while the
// adapter works already.
func (a *Adapter) remember(s *seen, segments int) {
	for i := segments - 1; i >= 0; i-- {
		var f *segment
		err := a.read(context.Background(), "", func(c *conn) (err error) {
			f, err = s.readSegment(c, i)
			return err
		})
		if err == nil {
			err = a.do(context.Background(), &op{cost: 1, run: func(*txn) { s.segments[i] = f }})
		}
		select {
		case <-a.stop:
			return
		default:
		}
		if err != nil { // every new key is looked for on disk there: slower, not wrong
			a.log.Warn("idempotency keys could not be read into memory", "segment", i, "error", err)
		}
	}
}
