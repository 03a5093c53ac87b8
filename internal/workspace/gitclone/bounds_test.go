package gitclone

import (
	"bytes"
	"context"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

func TestWhatIsLargerThanTheDiskDoesNotFit(t *testing.T) {
	dir := t.TempDir()
	for _, name := range []string{"a", "b/c", "b/d"} {
		path := filepath.Join(dir, name)
		if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(path, make([]byte, 1000), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	for _, c := range []struct {
		r    Request
		fits bool
	}{
		{Request{Bytes: 3000, Entries: 5}, true}, {Request{Bytes: 2999, Entries: 5}, false}, {Request{Bytes: 3000, Entries: 4}, false},
	} {
		if err := c.r.fits(dir); (err == nil) != c.fits || err != nil && !errors.Is(err, errTooLarge) {
			t.Errorf("%+v: %v", c.r, err)
		}
	}
	ctx, cancel := context.WithCancelCause(t.Context())
	defer cancel(nil)
	Request{Bytes: 1, Entries: 100}.watch(ctx, dir, cancel)
	if !errors.Is(context.Cause(ctx), errTooLarge) {
		t.Errorf("the clone goes on: %v", context.Cause(ctx))
	}
}

func TestOnlyTheEndOfWhatGitSaysIsKept(t *testing.T) {
	var w tail
	for range 100 {
		if n, err := w.Write(bytes.Repeat([]byte("x"), 10_000)); n != 10_000 || err != nil {
			t.Fatal(n, err)
		}
	}
	_, _ = w.Write([]byte("the end"))
	if len(w.last) != maxSaid || !strings.HasSuffix(string(w.last), "xthe end") {
		t.Errorf("%d bytes: %q", len(w.last), w.last)
	}
}

func TestRequestsThatCannotBe(t *testing.T) {
	for text, want := range map[string]string{
		"":                                 "EOF",
		`{"url":"http://a/b"}`:             "https",
		`{"url":"https://a/b","x":1}`:      "unknown field",
		`{"url":"https://a/b","ref":"-x"}`: "branch",
		`{"url":"https://a/b"}`:            "limit",
	} {
		var out, log bytes.Buffer
		err := Clone(t.Context(), strings.NewReader(text), &out, &log)
		if os.Geteuid() == 0 {
			want = "root"
		}
		if err == nil || !strings.Contains(err.Error(), want) || out.Len() > 0 {
			t.Errorf("%s: %v", text, err)
		}
	}
}
