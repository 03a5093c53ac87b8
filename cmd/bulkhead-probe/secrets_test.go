package main

import (
	"crypto/sha256"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

func sumOf(token string) string {
	return fmt.Sprintf("%d:%x", len(token), sha256.Sum256([]byte(token)))
}

func TestTokensAreFoundWhereverTheyStand(t *testing.T) {
	hexadecimal, text, base64 := strings.Repeat("0123456789abcdef", 4), "ABCDEFGHIJKLMNOPQRSTUVWXYZ", strings.Repeat("aZ-_9", 9)[:43]
	w, err := parseWanted([]string{sumOf(hexadecimal), sumOf(text), sumOf(base64)})
	if err != nil {
		t.Fatal(err)
	}
	for _, token := range []string{hexadecimal, text, base64} {
		for _, in := range []string{
			token, "TOKEN=" + token, `{"token":"` + token + `"}`, "--token\x00" + token + "\x00", "Authorization: Bearer " + token + "\r\n", "prefix-" + token + "-suffix", "x" + token,
		} {
			if !w.in([]byte(in)) {
				t.Errorf("%q is not found", in)
			}
		}
		for _, none := range []string{token[1:], token[:len(token)-1], token[:10] + "." + token[10:], strings.ToLower(token[:1]) + "!" + token[1:], ""} {
			if w.in([]byte(none)) {
				t.Errorf("%q is found, and is no token", none)
			}
		}
	}
}

func TestASumThatIsNoneIsRefused(t *testing.T) {
	for _, bad := range [][]string{nil, {""}, {"64"}, {"64:zz"}, {"x:" + strings.Repeat("0", 64)}, {"15:" + strings.Repeat("0", 64)}, {"513:" + strings.Repeat("0", 64)}, {"64:" + strings.Repeat("0", 62)}} {
		if _, err := parseWanted(bad); err == nil {
			t.Errorf("%q is taken", bad)
		}
	}
}

func TestFilesAreReadToACertainLengthAndNothingButFiles(t *testing.T) {
	dir := t.TempDir()
	for name, size := range map[string]int{"small": 10, "large": ofFile + 10, "core.77": ofFile + 10, "empty": 0} {
		if err := os.WriteFile(filepath.Join(dir, name), make([]byte, size), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	if err := os.Symlink("small", filepath.Join(dir, "link")); err != nil {
		t.Fatal(err)
	}
	list, err := os.ReadDir(dir)
	if err != nil {
		t.Fatal(err)
	}
	want := map[string]int{"small": 10, "large": ofFile, "core.77": ofFile + 10}
	for _, e := range list {
		raw, ok := readSome(filepath.Join(dir, e.Name()), e)
		if n, wanted := want[e.Name()]; ok != wanted || len(raw) != n {
			t.Errorf("%s: %d bytes, %t", e.Name(), len(raw), ok)
		}
	}
}

// FuzzTokens holds the search against the plain one.
func FuzzTokens(f *testing.F) {
	f.Add("TOKEN=", "0123456789abcdef0123456789abcdef", "\n")
	f.Add("", "ABCDEFGHIJKLMNOPQRSTUVWXYZ", "-")
	f.Fuzz(func(t *testing.T, before, token, after string) {
		for _, c := range []byte(token) {
			if !ofToken(c) {
				return
			}
		}
		w, err := parseWanted([]string{sumOf(token)})
		if err != nil {
			return
		}
		text := before + token + after
		long := len(before)+len(token)+len(after) > longest // a run of that length is left out
		if got := w.in([]byte(text)); !got && !long {
			t.Errorf("%q is not found in %q", token, text)
		}
		if other := strings.ReplaceAll(text, token, "."); !strings.Contains(other, token) && w.in([]byte(other)) {
			t.Errorf("%q is found in %q", token, other)
		}
	})
}
