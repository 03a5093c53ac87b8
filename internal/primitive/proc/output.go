package proc

import (
	"fmt"
	"io"
	"os"
	"strings"
	"sync"
)

// DefaultOutput bounds what is kept of stdout, and of stderr, in bytes.
const DefaultOutput = 1 << 20

// outputNote says that there was more than n bytes.
func outputNote(n int) string {
	many := fmt.Sprintf("%d bytes", n)
	if n%(1<<20) == 0 {
		many = fmt.Sprintf("%d MiB", n>>20)
	}
	return "\n[the output is longer than " + many + "; the rest was thrown away]\n"
}

// output keeps the beginning of what code prints, and reads the rest so that
// nothing blocks.
type output struct {
	done chan struct{} // closed at the end of the stream
	most int           // bytes that are kept

	mu   sync.Mutex
	kept []byte
	all  int64 // bytes that came
}

// collect reads f to its end, keeps its first bytes, and closes it.
func collect(f *os.File, most int) *output {
	o := &output{done: make(chan struct{}), most: most}
	go o.read(f) // ends with the last writer, which the launcher sees to
	return o
}

func (o *output) read(f io.ReadCloser) {
	defer close(o.done)
	defer func() { _ = f.Close() }()
	buf := make([]byte, 32<<10)
	for {
		n, err := f.Read(buf)
		o.mu.Lock()
		o.all += int64(n)
		o.kept = append(o.kept, buf[:min(n, o.most-len(o.kept))]...)
		o.mu.Unlock()
		if err != nil {
			return
		}
	}
}

// text gives what was kept, as UTF-8, with a note when that is not all.
func (o *output) text() string {
	o.mu.Lock()
	defer o.mu.Unlock()
	s := strings.ToValidUTF8(string(o.kept), "\uFFFD")
	if o.all > int64(len(o.kept)) {
		s += outputNote(o.most)
	}
	return s
}

// size gives the bytes that came.
func (o *output) size() int64 {
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.all
}
