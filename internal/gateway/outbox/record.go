package outbox

import (
	"bytes"
	"encoding/binary"
	"encoding/json"
	"hash/crc32"
	"sync"
	"time"

	"bulkhead/internal/adapter"
	"bulkhead/internal/deny"
)

// magic begins a record.
const magic = "BHO1"

const headSize = len(magic) + 8

// maxRecord bounds what a length may say: a draft, its envelope, and room.
const maxRecord = adapter.MaxBody + 1<<16

// castagnoli is made when it is first used: every program that links this would
// make it at its start.
var castagnoli = sync.OnceValue(func() *crc32.Table { return crc32.MakeTable(crc32.Castagnoli) })

// entry is the payload of a record. Exactly one of Draft, Done and Refused is
// set.
type entry struct {
	N       uint64         `json:"n"`
	Time    time.Time      `json:"time,omitzero"`
	Draft   *adapter.Draft `json:"draft,omitempty"`
	Done    bool           `json:"done,omitempty"`
	Refused *Refused       `json:"refused,omitempty"`
}

// Refused is a draft that was answered 202 and then refused by the adapter.
type Refused struct {
	Draft  adapter.Draft `json:"message"`
	Reason *deny.Reason  `json:"reason"`
	Queued time.Time     `json:"queued"` // when the agent was answered
	At     time.Time     `json:"refused"`
}

func appendRecord(b []byte, e *entry) ([]byte, error) {
	var buf bytes.Buffer
	enc := json.NewEncoder(&buf)
	enc.SetEscapeHTML(false) // "<" would grow sixfold
	if err := enc.Encode(e); err != nil {
		return b, err
	}
	p := bytes.TrimSuffix(buf.Bytes(), []byte{'\n'})
	b = append(b, magic...)
	b = binary.BigEndian.AppendUint32(b, uint32(len(p))) // #nosec G115 -- bounded by maxRecord
	b = binary.BigEndian.AppendUint32(b, crc32.Checksum(p, castagnoli()))
	return append(b, p...), nil
}

// parse reads every whole record. end is where the last one ends, and skipped
// how many bytes before that are none.
func parse(text []byte) (all []entry, end, skipped int) {
	for at := 0; at < len(text); {
		e, n, ok := parseOne(text[at:])
		if ok {
			skipped += at - end
			at += n
			end = at
			all = append(all, e)
			continue
		}
		next := bytes.Index(text[at+1:], []byte(magic))
		if next < 0 {
			break
		}
		at += 1 + next
	}
	return all, end, skipped
}

func parseOne(b []byte) (e entry, n int, ok bool) {
	if len(b) < headSize || string(b[:len(magic)]) != magic {
		return e, 0, false
	}
	size := binary.BigEndian.Uint32(b[len(magic):])
	if size > maxRecord || int(size) > len(b)-headSize {
		return e, 0, false
	}
	p := b[headSize : headSize+int(size)]
	if crc32.Checksum(p, castagnoli()) != binary.BigEndian.Uint32(b[len(magic)+4:]) || json.Unmarshal(p, &e) != nil {
		return entry{}, 0, false
	}
	if e.N == 0 || (e.Draft != nil) == (e.Done || e.Refused != nil) || e.Done && e.Refused != nil {
		return entry{}, 0, false
	}
	return e, headSize + int(size), true
}
