package proc

import (
	"os"
	"strings"
	"testing"
)

func TestOutputIsKeptUpToItsBoundAndReadToItsEnd(t *testing.T) {
	for _, c := range []struct {
		most, written int
		note          string
	}{
		{1024, 1023, ""},
		{1024, 1024, ""},
		{1024, 1025, "longer than 1024 bytes;"},
		{1024, 1 << 20, "longer than 1024 bytes;"},
		{DefaultOutput, DefaultOutput + 1, "longer than 1 MiB;"},
		{8 << 20, DefaultOutput + 1, ""},
	} {
		r, w, err := os.Pipe()
		if err != nil {
			t.Fatal(err)
		}
		o := collect(r, c.most)
		if _, err := w.WriteString(strings.Repeat("x", c.written)); err != nil {
			t.Fatal(err)
		}
		if err := w.Close(); err != nil {
			t.Fatal(err)
		}
		<-o.done
		text, note, _ := strings.Cut(o.text(), "\n")
		if len(text) != min(c.most, c.written) || o.size() != int64(c.written) || (note != "") != (c.note != "") || !strings.Contains(note, c.note) {
			t.Errorf("%d of %d bytes: %d kept, note %q", c.written, c.most, len(text), note)
		}
	}
}
