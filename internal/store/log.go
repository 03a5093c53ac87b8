package store

import (
	"errors"
	"os"
	"path/filepath"

	"golang.org/x/sys/unix"
)

// What a commit waits for is the sync of the log. Where the log grows, the file
// system writes down its new size and blocks as well, which takes as long again
// as the data (docs/decisions/0079). So the log of an agent that writes much is
// made as long as it gets, behind its end and with zeros, which mean nothing to
// SQLite: a frame counts only with the salts of the log's head and the checksum
// of all before it.
const (
	checkpointPages = 1000 // after which SQLite lets the log begin anew
	logBytes        = checkpointPages*(pageSize+24) + 1<<20
	logStep         = 1 << 20 // at once: some ms for whoever waits
	logAfter        = 64      // commits: most guests never come so far
	logEvery        = 16      // commits from one step to the next
)

// lengthen adds a step to the log, by who has the lead and so while SQLite writes
// nothing. What fails is cut off again and costs time alone.
func (s *Store) lengthen() {
	if s.w.commits++; s.w.long || s.w.commits < logAfter || s.w.commits%logEvery != 0 {
		return
	}
	long, err := lengthen(s.cfg.Path + "-wal")
	if s.w.long = long || err != nil; err != nil {
		s.cfg.Log.Warn("the log of system.db could not be made long", "error", err, "effect", "commits take longer")
	}
}

// lengthen says whether the log is long enough now.
func lengthen(path string) (long bool, err error) {
	f, err := os.OpenFile(filepath.Clean(path), os.O_RDWR|unix.O_CLOEXEC|unix.O_NOFOLLOW, 0)
	if err != nil {
		return false, err
	}
	defer func() { err = errors.Join(err, f.Close()) }()
	info, err := f.Stat()
	if err != nil {
		return false, err
	}
	n := min(logStep, logBytes-info.Size())
	if n <= 0 {
		return true, nil
	}
	// Blocks that are only set aside would be written down as used by each commit.
	if _, err = f.WriteAt(make([]byte, n), info.Size()); err == nil {
		err = unix.Fdatasync(int(f.Fd())) // #nosec G115 -- a descriptor
	}
	if err != nil {
		return false, errors.Join(err, f.Truncate(info.Size()))
	}
	return info.Size()+n >= logBytes, nil
}
