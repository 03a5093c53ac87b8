package plain

import (
	"bytes"
	"io"
	"net/http"
	"testing"
	"testing/iotest"
)

func FuzzExact(f *testing.F) {
	f.Add([]byte("hello"), int64(5), uint8(3))
	f.Add([]byte("hello"), int64(3), uint8(1))
	f.Add([]byte("hello"), int64(9), uint8(0))
	f.Fuzz(func(t *testing.T, all []byte, n int64, how uint8) {
		var from io.Reader = bytes.NewReader(all)
		switch how % 3 {
		case 1:
			from = iotest.OneByteReader(from)
		case 2:
			from = iotest.DataErrReader(from)
		}
		got, err := io.ReadAll(Exact(io.NopCloser(from), n))
		want := all
		if n > 0 && n < int64(len(all)) {
			want = all[:n]
		}
		if err != nil || !bytes.Equal(got, want) {
			t.Errorf("%d of %d bytes: %q, %v", n, len(all), got, err)
		}
	})
}

// The end is known without a last question to what is read.
func TestExactAsksNoMore(t *testing.T) {
	body := Exact(io.NopCloser(io.MultiReader(bytes.NewReader([]byte("abc")), iotest.ErrReader(http.ErrBodyReadAfterClose))), 3)
	if got, err := io.ReadAll(body); err != nil || string(got) != "abc" {
		t.Errorf("%q, %v", got, err)
	}
	if Exact(http.NoBody, 0) != http.NoBody || Exact(nil, 3) != nil {
		t.Error("what is no body has become one")
	}
}
