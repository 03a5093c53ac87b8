package launcher

import (
	"bufio"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"sync"
	"time"

	"golang.org/x/sys/unix"
)

// Sizes of logs.
const (
	logSize  = 30 << 20 // bytes of all files together, unless the launch says otherwise
	logFiles = 3        // the current one, .1 and .2
	logPart  = 16 << 10 // bytes of one line; a longer one comes in parts
)

// logFile is a rotated log. Several streams may write to it. Its folder is held
// open from the start on: whatever becomes of the path, the log stays there.
type logFile struct {
	dir  *os.File
	name string
	size int64 // of one file
	mu   sync.Mutex
	f    *os.File
	n    int64
	pace pace
}

// How much a container may print for long, and at once. What prints more is
// held up in its own writes: a process may not buy the launcher's processor
// time, several times its own, and the disk's by printing short lines.
const (
	logRate  = 1 << 20 // bytes of log a second
	logBurst = 8 << 20
)

// pace is a bucket of bytes that fills with time.
type pace struct {
	spent float64 // of logBurst, as of at
	at    time.Time
}

// take spends n bytes and says how long to wait before the next ones.
func (p *pace) take(now time.Time, n int) time.Duration {
	p.spent = max(0, p.spent-now.Sub(p.at).Seconds()*logRate) + float64(n)
	p.at = now
	if p.spent <= logBurst {
		return 0
	}
	return time.Duration((p.spent - logBurst) / logRate * float64(time.Second))
}

// openLog opens the log at path, whose files together hold at most total bytes;
// zero takes [logSize].
func openLog(path string, total int64) (*logFile, error) {
	if total <= 0 {
		total = logSize
	}
	// #nosec G304 -- root's own log folder
	dir, err := os.OpenFile(filepath.Dir(path), os.O_RDONLY|unix.O_DIRECTORY|unix.O_NOFOLLOW, 0)
	if err != nil {
		return nil, fmt.Errorf("launcher: log: %w", err)
	}
	l := &logFile{dir: dir, name: filepath.Base(path), size: total / logFiles}
	if err := l.open(); err != nil {
		return nil, errors.Join(err, dir.Close())
	}
	return l, nil
}

func (l *logFile) open() error {
	fd, err := unix.Openat(int(l.dir.Fd()), l.name, unix.O_WRONLY|unix.O_CREAT|unix.O_APPEND|unix.O_NOFOLLOW|unix.O_CLOEXEC, 0o600) // #nosec G115 -- a descriptor
	if err != nil {
		return fmt.Errorf("launcher: log: open %s: %w", l.name, err)
	}
	f := os.NewFile(uintptr(fd), l.name) // #nosec G115 -- a descriptor
	st, err := f.Stat()
	if err != nil {
		return errors.Join(fmt.Errorf("launcher: log: %w", err), f.Close())
	}
	l.f, l.n = f, st.Size()
	return nil
}

// Close closes the current file.
func (l *logFile) Close() error {
	l.mu.Lock()
	defer l.mu.Unlock()
	return errors.Join(l.f.Close(), l.dir.Close())
}

// line writes one entry, and says how long to wait before the next one.
func (l *logFile) line(at time.Time, stream string, full bool, text []byte) (time.Duration, error) {
	tag := "F"
	if !full {
		tag = "P"
	}
	entry := append(fmt.Appendf(nil, "%s %s %s ", at.UTC().Format(time.RFC3339Nano), stream, tag), text...)
	entry = append(entry, '\n')
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.n > 0 && l.n+int64(len(entry)) > l.size {
		if err := l.rotate(); err != nil {
			return 0, err
		}
	}
	n, err := l.f.Write(entry)
	l.n += int64(n)
	wait := l.pace.take(at, len(entry))
	if err != nil {
		return wait, fmt.Errorf("launcher: log: %w", err)
	}
	return wait, nil
}

func (l *logFile) rotate() error {
	dir := int(l.dir.Fd()) // #nosec G115 -- a descriptor
	for i := logFiles - 1; i > 0; i-- {
		from := l.name
		if i > 1 {
			from = fmt.Sprintf("%s.%d", l.name, i-1)
		}
		if err := unix.Renameat(dir, from, dir, fmt.Sprintf("%s.%d", l.name, i)); err != nil && !errors.Is(err, unix.ENOENT) {
			return fmt.Errorf("launcher: rotate the log: %w", err)
		}
	}
	if err := l.f.Close(); err != nil {
		return fmt.Errorf("launcher: rotate the log: %w", err)
	}
	return l.open()
}

// pauseStep keeps pauses from being so short that they cost more than they save.
const pauseStep = 10 * time.Millisecond

// copy writes what r gives until its end. When the log cannot be written (a
// full disk) it goes on reading, so that the container does not stop in the
// middle of a write, and reports the first failure at the end.
func (l *logFile) copy(stream string, r io.Reader) error {
	in := bufio.NewReaderSize(r, logPart)
	var first error
	for {
		text, more, err := in.ReadLine()
		if err != nil {
			if errors.Is(err, io.EOF) || errors.Is(err, os.ErrClosed) || errors.Is(err, os.ErrDeadlineExceeded) {
				return first
			}
			return errors.Join(first, fmt.Errorf("launcher: read %s: %w", stream, err))
		}
		wait, err := l.line(time.Now(), stream, !more, text)
		if err != nil && first == nil {
			first = err
		}
		if wait > pauseStep {
			time.Sleep(wait)
		}
	}
}
