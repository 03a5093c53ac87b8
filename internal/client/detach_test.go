package client

import (
	"bytes"
	"testing"
)

func TestKeysThatLeave(t *testing.T) {
	for _, tc := range []struct {
		name  string
		typed []string
		want  string
		left  bool
	}{
		{"text", []string{"hello", " you\r"}, "hello you\r", false},
		{"both at once", []string{"\x10\x11"}, "", true},
		{"one after the other", []string{"\x10", "\x11"}, "", true},
		{"the first alone goes on with what follows", []string{"a\x10", "b"}, "a\x10b", false},
		{"the second alone", []string{"a\x11b"}, "a\x11b", false},
		{"the first twice, then the second", []string{"\x10\x10\x11"}, "\x10", true},
		{"after text, in the same read", []string{"ls\r\x10\x11x"}, "ls\r", true},
		{"in the wrong order", []string{"\x11\x10", "x"}, "\x11\x10x", false},
	} {
		t.Run(tc.name, func(t *testing.T) {
			k := &detachKeys{first: 0x10, second: 0x11}
			var got []byte
			left := false
			for _, s := range tc.typed {
				var b []byte
				b, left = k.pass([]byte(s))
				got = append(got, b...)
			}
			if string(got) != tc.want || left != tc.left || k.typed() != tc.left {
				t.Errorf("%q, left %v", got, left)
			}
		})
	}
}

// What is passed is what was typed, but for a first key that is still held.
func FuzzKeysThatLeave(f *testing.F) {
	f.Add([]byte("a\x10b\x11\x10\x10"), uint8(3))
	f.Add([]byte("\x10\x11"), uint8(1))
	f.Fuzz(func(t *testing.T, typed []byte, size uint8) {
		k := &detachKeys{first: 0x10, second: 0x11}
		step := int(size%7) + 1
		var got []byte
		for rest := typed; len(rest) > 0; {
			n := min(step, len(rest))
			b, left := k.pass(rest[:n])
			got = append(got, b...)
			if left {
				if !bytes.Contains(typed, []byte{0x10, 0x11}) {
					t.Fatal("left without the keys")
				}
				return
			}
			rest = rest[n:]
		}
		if bytes.Contains(typed, []byte{0x10, 0x11}) {
			t.Fatal("the keys were not seen")
		}
		if k.held {
			got = append(got, 0x10)
		}
		if !bytes.Equal(got, typed) {
			t.Errorf("%q became %q", typed, got)
		}
	})
}
