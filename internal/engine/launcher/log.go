package launcher

import (
	"bufio"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"sync"
	"time"
)

// Sizes of logs.
const (
	logSize  = 10 << 20 // bytes per file
	logFiles = 3        // the current one, .1 and .2
	logPart  = 16 << 10 // bytes of one line; a longer one comes in parts
)

// logFile is a rotated log. Several streams may write to it.
type logFile struct {
	path string
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

func openLog(path string, size int64) (*logFile, error) {
	l := &logFile{path: path, size: size}
	if err := l.open(); err != nil {
		return nil, err
	}
	return l, nil
}

func (l *logFile) open() error {
	f, err := os.OpenFile(l.path, os.O_WRONLY|os.O_CREATE|os.O_APPEND, 0o600) // #nosec G304 -- root's own log folder
	if err != nil {
		return fmt.Errorf("launcher: log: %w", err)
	}
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
	return l.f.Close()
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
	for i := logFiles - 1; i > 0; i-- {
		from := l.path
		if i > 1 {
			from = fmt.Sprintf("%s.%d", l.path, i-1)
		}
		if err := os.Rename(from, fmt.Sprintf("%s.%d", l.path, i)); err != nil && !errors.Is(err, fs.ErrNotExist) {
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
