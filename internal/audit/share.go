package audit

import (
	"fmt"

	"golang.org/x/sys/unix"
)

// lowFree is where the disk is so nearly full that who wrote most of the log waits, so
// that a captured gateway does not take from the others what is left of it.
const lowFree = 1 << 30

// enough is what an agent has written that does not matter to the disk.
const enough = 256 << 20

// member is an agent, whatever its lists are called.
type member struct{ team, agent string }

func (s source) member() member { return member{s.team, s.agent} }

// within answers the requests for which the disk has no room, and gives the others: below
// lowFree those are refused whose agent has written a quarter more than an equal share, and
// so much that it matters to the disk.
func (l *Log) within(all []*request) []*request {
	free, err := l.free()
	if err != nil || free >= lowFree {
		return all // room tells of the error
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	total := int64(0)
	for _, n := range l.state.bytes {
		total += n
	}
	share := total / int64(max(1, len(l.state.bytes)))
	var rest []*request
	for _, r := range all {
		if n := l.state.bytes[r.source.member()]; len(l.state.bytes) > 1 && n > l.enough && n > share+share/4 {
			r.done <- fmt.Errorf("audit: %d MiB are free on its disk, and this agent wrote %d of the %d MiB of the log, more than its share: free some", free>>20, n>>20, total>>20)
			continue
		}
		rest = append(rest, r)
	}
	return rest
}

// room keeps the host's disk from being filled by whoever calls most.
func (l *Log) room() error {
	free, err := l.free()
	if err != nil {
		return err
	}
	if free < minFree {
		return fmt.Errorf("audit: %d MiB are free on its disk, fewer than %d: free some", free>>20, minFree>>20)
	}
	return nil
}

// freeOf gives the bytes that are free on the log's disk.
func (l *Log) freeOf() (uint64, error) {
	var st unix.Statfs_t
	if err := unix.Fstatfs(int(l.f.Fd()), &st); err != nil { // #nosec G115 -- a descriptor
		return 0, fmt.Errorf("audit: %w", err)
	}
	return st.Bavail * uint64(st.Bsize), nil // #nosec G115 -- never negative
}
