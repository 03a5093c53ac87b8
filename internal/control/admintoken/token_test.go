package admintoken

import (
	"bytes"
	"crypto/rand"
	"encoding/base64"
	"encoding/hex"
	"errors"
	"strings"
	"testing"
	"time"
)

func random(n int) []byte {
	raw := make([]byte, n)
	_, _ = rand.Read(raw)
	return raw
}

func TestOnlyLongRandomTokensAreTaken(t *testing.T) {
	counted := make([]byte, 64)
	for i := range counted {
		counted[i] = byte(i)
	}
	stride := make([]byte, 64)
	for i := range stride {
		stride[i] = byte(i * 37)
	}
	good := random(64)
	for name, c := range map[string]struct {
		text string
		ok   bool
	}{
		"64 random bytes, hex":            {hex.EncodeToString(good), true},
		"64 random bytes, HEX":            {strings.ToUpper(hex.EncodeToString(good)), true},
		"64 random bytes, base64":         {base64.StdEncoding.EncodeToString(good), true},
		"64 random bytes, URLs' base64":   {base64.RawURLEncoding.EncodeToString(good), true},
		"with a line end":                 {base64.StdEncoding.EncodeToString(good) + "\n", true},
		"100 random bytes":                {hex.EncodeToString(random(100)), true},
		"63 random bytes":                 {hex.EncodeToString(random(63)), false},
		"64 characters of hex":            {hex.EncodeToString(random(32)), false},
		"86 hex characters are no base64": {hex.EncodeToString(random(43)), false},
		"empty":                           {"", false},
		"words":                           {strings.Repeat("correct horse battery staple ", 10), false},
		"one letter, as base64":           {strings.Repeat("A", 128), false},
		"zeros, hex":                      {strings.Repeat("0", 256), false},
		"16 random bytes four times":      {hex.EncodeToString(bytes.Repeat(random(16), 4)), false},
		"32 random bytes twice":           {hex.EncodeToString(bytes.Repeat(random(32), 2)), false},
		"counted":                         {hex.EncodeToString(counted), false},
		"counted in strides":              {hex.EncodeToString(stride), false},
		"two lines":                       {hex.EncodeToString(random(40)) + "\n" + hex.EncodeToString(random(40)), false},
		"too long":                        {hex.EncodeToString(random(MaxText)), false},
	} {
		h, err := Read([]byte(c.text))
		if (err == nil) != c.ok || err != nil && (!errors.Is(err, ErrWeak) || !strings.Contains(err.Error(), "urandom") || h != "") {
			t.Errorf("%s: %q, %v", name, h, err)
		}
		if c.ok && h != Of(strings.TrimSpace(c.text)) {
			t.Errorf("%s: hash %s", name, h)
		}
	}
	for range 100 {
		if _, err := Read([]byte(hex.EncodeToString(random(64)))); err != nil {
			t.Fatal(err)
		}
	}
}

func TestWhoGuessesIsLockedOut(t *testing.T) {
	now := time.Unix(1e9, 0)
	g := NewGuard(func() time.Time { return now })
	known := []Hash{Of("a"), Of("b")}
	right := func(text string, want int) {
		t.Helper()
		if at, wait := g.Check(known, text); at != want || wait != 0 {
			t.Fatalf("%q: %d, %s", text, at, wait)
		}
	}
	right("a", 0)
	right("b", 1)
	for range 10 { // never five in a row
		for range guesses - 1 {
			right("x", -1)
		}
		right("b", 1)
	}
	lock := firstLock
	for range guesses - 1 {
		right("x", -1)
	}
	for range 12 {
		right("x", -1)
		for _, text := range []string{"a", "x", ""} { // the right one tells nothing either
			if at, wait := g.Check(known, text); at != -1 || wait != lock {
				t.Fatalf("locked: %q gives %d, %s, want %s", text, at, wait, lock)
			}
		}
		now = now.Add(lock)
		lock = min(2*lock, longest)
	}
	right("a", 0)
	for range guesses - 1 {
		right("x", -1)
	}
	right("a", 0) // counted anew
}

func FuzzRead(f *testing.F) {
	f.Add([]byte(hex.EncodeToString(random(64))))
	f.Add([]byte(""))
	f.Fuzz(func(t *testing.T, content []byte) {
		h, err := Read(content)
		if (h == "") == (err == nil) {
			t.Fatalf("%q: %q, %v", content, h, err)
		}
		if at, _ := NewGuard(nil).Check([]Hash{h}, strings.TrimSpace(string(content))); err == nil && at != 0 {
			t.Fatalf("%q is not found again", content)
		}
	})
}
