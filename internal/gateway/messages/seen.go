package messages

import (
	"encoding/json"
	"errors"
	"io"
	"os"
	"path/filepath"
	"sync"
	"time"

	"bulkhead/internal/adapter"
)

// Bounds of what is remembered of channels.
const (
	maxMarks  = 4096 // channels; an agent has its team's and one with each other agent
	maxTaken  = 8192 // deliveries whose end was not heard of
	maxSeen   = 2 << 20
	saveEvery = 100 * time.Millisecond
)

// mark is how far the agent has come in a channel.
type mark struct {
	// Sequence is the last message that it acknowledged, and Time that message's.
	Sequence uint64    `json:"sequence"`
	Time     time.Time `json:"time"`
	// Told is up to where gaps that are not filled were told to the operator, and
	// Lost messages that are lost.
	Told uint64 `json:"told,omitempty"`
	Lost uint64 `json:"lost,omitempty"`
}

// marks is the form of the file.
type marks struct {
	Version  int             `json:"version"`
	Channels map[string]mark `json:"channels"`
}

const marksVersion = 1

// taken is a delivery under a lease.
type taken struct {
	channel  string
	sequence uint64
	time     time.Time // of the message
	expires  time.Time
}

// seen remembers the last message of each channel that the agent acknowledged.
//
// The file is written without a sync, a little later, many acknowledgements at
// once: one that is behind only has the adapter asked about more than was needed,
// and the adapter knows what became of each delivery.
type seen struct {
	path string

	mu     sync.Mutex
	marks  map[string]mark
	leases map[string]taken
	dirty  bool
	kick   chan struct{} // holds a token when dirty became true
}

// openSeen reads what is there. What cannot be read is begun anew, with an error
// that says so.
func openSeen(dir string) (*seen, error) {
	s := &seen{path: filepath.Join(dir, "seen.json"), marks: map[string]mark{}, leases: map[string]taken{}, kick: make(chan struct{}, 1)}
	f, err := os.Open(s.path)
	if errors.Is(err, os.ErrNotExist) {
		return s, nil
	}
	var raw []byte
	if err == nil {
		raw, err = io.ReadAll(io.LimitReader(f, maxSeen+1))
		err = errors.Join(err, f.Close())
	}
	if err == nil {
		s.marks, err = parseMarks(raw)
	}
	if err != nil {
		s.marks = map[string]mark{}
	}
	return s, err
}

func parseMarks(raw []byte) (map[string]mark, error) {
	var m marks
	switch err := json.Unmarshal(raw, &m); {
	case len(raw) > maxSeen || err != nil:
		return nil, errors.Join(errors.New("what was seen of channels cannot be read"), err)
	case m.Version != marksVersion || len(m.Channels) > maxMarks:
		return nil, errors.New("what was seen of channels is of another version, or is too much")
	case m.Channels == nil:
		m.Channels = map[string]mark{}
	}
	return m.Channels, nil
}

// save writes the file when something changed.
func (s *seen) save() error {
	s.mu.Lock()
	if !s.dirty {
		s.mu.Unlock()
		return nil
	}
	raw, err := json.Marshal(marks{marksVersion, s.marks})
	s.dirty = false
	s.mu.Unlock()
	if err != nil {
		return err
	}
	part := s.path + ".part"
	if err := os.WriteFile(part, raw, 0o600); err != nil {
		return err
	}
	return os.Rename(part, s.path)
}

// took remembers deliveries until they are acknowledged.
func (s *seen) took(all []adapter.Delivery) {
	if len(all) == 0 {
		return
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if len(s.leases)+len(all) > maxTaken {
		s.forget(time.Now())
	}
	for i := range all {
		if len(s.leases) >= maxTaken {
			return // its acknowledgement moves no mark
		}
		d := &all[i]
		s.leases[d.Lease] = taken{d.Channel, d.Sequence, d.Time, d.Expires}
	}
}

// forget drops leases that are over. One that was extended may go with them. The
// caller holds s.mu.
func (s *seen) forget(now time.Time) {
	for lease, d := range s.leases {
		if d.expires.Before(now) {
			delete(s.leases, lease)
		}
	}
}

// over forgets a lease whose end moves no mark.
func (s *seen) over(lease string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	delete(s.leases, lease)
}

// acknowledged moves the mark of a lease's channel. What was handed over before
// it and is acknowledged later, comes again or is given up after its tries is no
// gap, so the mark may pass it.
func (s *seen) acknowledged(lease string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	d, ok := s.leases[lease]
	if !ok {
		return
	}
	delete(s.leases, lease)
	m := s.marks[d.channel]
	if d.sequence > m.Sequence {
		m.Sequence, m.Time = d.sequence, d.time
		s.set(d.channel, m)
	}
}

// set is for a caller that holds s.mu.
func (s *seen) set(channel string, m mark) {
	if _, there := s.marks[channel]; !there && len(s.marks) >= maxMarks {
		return
	}
	s.marks[channel] = m
	if !s.dirty {
		s.dirty = true
		select {
		case s.kick <- struct{}{}:
		default:
		}
	}
}

func (s *seen) of(channel string) mark {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.marks[channel]
}

// all are the marks, to be looked at one after the other.
func (s *seen) all() map[string]mark {
	s.mu.Lock()
	defer s.mu.Unlock()
	out := make(map[string]mark, len(s.marks))
	for name, m := range s.marks {
		out[name] = m
	}
	return out
}

// tell says whether a gap up to a sequence is news for the operator, and
// remembers in what of the mark that it was told.
func (s *seen) tell(channel string, upTo uint64, what func(*mark) *uint64) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	m := s.marks[channel]
	told := what(&m)
	if upTo <= *told {
		return false
	}
	*told = upTo
	s.set(channel, m)
	return true
}

// restart sets the mark of a channel whose numbers are given anew; false: somebody
// else did.
func (s *seen) restart(channel string, from mark, to uint64) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.marks[channel].Sequence != from.Sequence {
		return false
	}
	s.set(channel, mark{Sequence: to})
	return true
}
