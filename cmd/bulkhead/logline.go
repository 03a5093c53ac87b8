package main

import (
	"bytes"
	"strings"

	"bulkhead/internal/terminal"
)

// maxLogLine bounds a line that never ends.
const maxLogLine = 1 << 20

// logLine is one line that a process printed, put together from its parts. In
// JSON it is one document of `logs --json`.
type logLine struct {
	SchemaVersion int    `json:"schemaVersion"`
	Time          string `json:"time"`   // RFC 3339 with nanoseconds
	Stream        string `json:"stream"` // stdout or stderr
	Text          string `json:"text"`
}

func (l logLine) clean() string {
	return strings.ReplaceAll(terminal.Text(l.Text), "\n", " ")
}

// logSplitter reads the CRI log format, as the kubelet does: lines of
//
//	<time> stdout|stderr F|P <text>
//
// where P says that the text goes on in the stream's next line. A line that is
// none of this (a log that was cut) is shown as it is.
type logSplitter struct {
	show    func(logLine) error
	rest    []byte // the beginning of a line
	partial map[string]*logLine
}

// Write implements io.Writer.
func (s *logSplitter) Write(p []byte) (int, error) {
	s.rest = append(s.rest, p...)
	for {
		i := bytes.IndexByte(s.rest, '\n')
		if i < 0 && len(s.rest) < maxLogLine {
			return len(p), nil
		}
		cut := i + 1
		if i < 0 {
			i, cut = len(s.rest), len(s.rest)
		}
		line := string(s.rest[:i])
		s.rest = append(s.rest[:0], s.rest[cut:]...)
		if err := s.line(line); err != nil {
			return 0, err
		}
	}
}

// end shows what is left of a log that stops in the middle of a line.
func (s *logSplitter) end() error {
	if len(s.rest) > 0 {
		line := string(s.rest)
		s.rest = nil
		if err := s.line(line); err != nil {
			return err
		}
	}
	for _, stream := range []string{"stdout", "stderr"} {
		if l := s.partial[stream]; l != nil {
			delete(s.partial, stream)
			if err := s.show(*l); err != nil {
				return err
			}
		}
	}
	return nil
}

func (s *logSplitter) line(line string) error {
	f := strings.SplitN(line, " ", 4)
	if len(f) < 3 || f[1] != "stdout" && f[1] != "stderr" || f[2] != "F" && f[2] != "P" {
		return s.show(logLine{Text: line})
	}
	l := &logLine{Time: f[0], Stream: f[1]}
	if len(f) == 4 {
		l.Text = f[3]
	}
	if before := s.partial[l.Stream]; before != nil {
		before.Text += l.Text
		l = before
	}
	if f[2] == "P" && len(l.Text) < maxLogLine {
		if s.partial == nil {
			s.partial = map[string]*logLine{}
		}
		s.partial[l.Stream] = l
		return nil
	}
	delete(s.partial, l.Stream)
	return s.show(*l)
}

// ring keeps the last lines.
type ring struct {
	size  int
	lines []logLine
	start int
}

func (r *ring) add(l logLine) error {
	switch {
	case r.size == 0:
	case len(r.lines) < r.size:
		r.lines = append(r.lines, l)
	default:
		r.lines[r.start] = l
		r.start = (r.start + 1) % r.size
	}
	return nil
}

func (r *ring) each(show func(logLine) error) error {
	for i := range r.lines {
		if err := show(r.lines[(r.start+i)%len(r.lines)]); err != nil {
			return err
		}
	}
	return nil
}
