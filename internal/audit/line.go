package audit

import (
	"bytes"
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"strings"
	"time"

	"golang.org/x/mod/sumdb/note"
	"golang.org/x/mod/sumdb/tlog"

	"bulkhead/internal/audit/protocol"
	"bulkhead/internal/record"
)

// origin is the first line of a checkpoint, and the name of its key.
const origin = "bulkhead-audit"

// maxLine bounds a line: a record and what is beside it.
const maxLine = protocol.MaxRecord + 4096

// entry is a line of the log that is a leaf.
type entry struct {
	Index  int64           `json:"index"`
	Time   time.Time       `json:"time"`
	Team   string          `json:"team"`
	Agent  string          `json:"agent"`
	List   string          `json:"list"`
	Seq    uint64          `json:"seq"`
	Record json.RawMessage `json:"record"`
}

// checkpoint is a line of the log that is none.
type checkpoint struct {
	Note string `json:"checkpoint"`
}

// checkpointStart is how such a line begins, and no other.
var checkpointStart = []byte(`{"checkpoint":`)

// source is one gateway's list.
type source struct{ team, agent, list string }

func (e *entry) source() source { return source{e.Team, e.Agent, e.List} }

// noteOf is the text of a checkpoint (C2SP tlog-checkpoint).
func noteOf(t *tree) string { return fmt.Sprintf("%s\n%d\n%s\n", origin, t.n, t.root()) }

// signed is a checkpoint line, with its end.
func signed(t *tree, key note.Signer) ([]byte, error) {
	text, err := note.Sign(&note.Note{Text: noteOf(t)}, key)
	if err != nil {
		return nil, fmt.Errorf("audit: %w", err)
	}
	raw, err := json.Marshal(checkpoint{Note: string(text)})
	if err != nil {
		return nil, fmt.Errorf("audit: %w", err)
	}
	return append(raw, '\n'), nil
}

// take reads one line, without its end, into the tree. It gives the entry, or
// nil for a checkpoint.
func (s *state) take(line []byte) (*entry, error) {
	if bytes.HasPrefix(line, checkpointStart) {
		var c checkpoint
		if err := strictly(line, &c); err != nil {
			return nil, err
		}
		n, err := note.Open([]byte(c.Note), note.VerifierList(s.key))
		if err != nil {
			return nil, fmt.Errorf("the checkpoint of %d lines is not signed by this log's key", s.tree.n)
		}
		if len(n.Sigs) != 1 || len(n.UnverifiedSigs) != 0 || !canonical(n.Sigs[0].Base64) {
			return nil, fmt.Errorf("the checkpoint of %d lines has more than its one signature", s.tree.n)
		}
		if n.Text != noteOf(&s.tree) {
			return nil, fmt.Errorf("the checkpoint after %d lines does not fit them: it says %.200q", s.tree.n, n.Text)
		}
		s.last, s.covers, s.root = c.Note, s.tree.n, s.tree.root()
		return nil, nil
	}
	var e entry
	if err := strictly(line, &e); err != nil {
		return nil, err
	}
	switch {
	case e.Index != s.tree.n:
		return nil, fmt.Errorf("a line has index %d where %d is due", e.Index, s.tree.n)
	case e.Team == "" || e.Agent == "" || e.List == "" || e.Seq <= s.seqs[e.source()]:
		return nil, fmt.Errorf("line %d is nobody's, or number %d of its list again", e.Index, e.Seq)
	}
	s.tree.add(line)
	s.seqs[e.source()] = e.Seq
	s.bytes[e.source().member()] += int64(len(line))
	return &e, nil
}

// canonical says whether base64 is as an encoder writes it.
func canonical(text string) bool {
	_, err := base64.StdEncoding.Strict().DecodeString(text)
	return err == nil
}

// strictly decodes a line that is exactly what we write.
func strictly(line []byte, into any) error {
	d := json.NewDecoder(bytes.NewReader(line))
	d.DisallowUnknownFields()
	if err := d.Decode(into); err != nil {
		return fmt.Errorf("a line is not one of ours: %w", err)
	}
	again, err := json.Marshal(into)
	if err != nil || !bytes.Equal(again, line) {
		return errors.New("a line is not as it was written")
	}
	return nil
}

// state is what reading the log from its start makes.
type state struct {
	key    note.Verifier
	tree   tree
	seqs   map[source]uint64
	bytes  map[member]int64 // of each one's lines
	last   string           // checkpoint
	covers int64            // lines that it is about
	root   tlog.Hash
}

func newState(key note.Verifier) *state {
	return &state{key: key, seqs: map[source]uint64{}, bytes: map[member]int64{}}
}

// compact checks a record of a gateway and gives it in the form that is kept.
func compact(raw json.RawMessage) (json.RawMessage, error) {
	var r record.Record
	if err := json.Unmarshal(raw, &r); err != nil || !strings.HasPrefix(strings.TrimSpace(string(raw)), "{") {
		return nil, errors.New("audit: a record is not one")
	}
	if len(raw) > protocol.MaxRecord {
		// Refused, it would keep all that come after it from being taken.
		r = r.Cut(len(raw))
		short, err := json.Marshal(&r)
		if err != nil || len(short) > protocol.MaxRecord {
			return nil, fmt.Errorf("audit: a record has %d bytes, more than %d", len(raw), protocol.MaxRecord)
		}
		raw = short
	}
	// As Marshal writes it inside of an entry: without space, < > & escaped.
	out, err := json.Marshal(raw)
	if err != nil {
		return nil, fmt.Errorf("audit: %w", err)
	}
	return out, nil
}
