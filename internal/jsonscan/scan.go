// Package jsonscan finds where JSON values end, without making anything of
// them: bodies of messages are carried, not read, and every program on their
// way has to know that they are JSON. It accepts exactly what encoding/json
// does (RFC 8259; any bytes from 0x80 on in strings; at most 10,000 levels),
// and passes eight bytes of a string at a time.
//
// [Object] and [Array] take a value apart one level deep. They give up on what
// is unusual (an escape in a name), so that callers use encoding/json then:
// what is accepted never depends on which of the two looked.
package jsonscan

import (
	"bytes"
	"encoding/binary"
	"encoding/json"
	"math/bits"
)

// maxDepth is encoding/json's.
const maxDepth = 10000

// Valid says whether b is one JSON value with white space around it.
func Valid(b []byte) bool {
	end := value(b, space(b, 0), 0)
	return end >= 0 && space(b, end) == len(b)
}

// Same compares JSON texts without regard to white space between what they hold.
func Same(a, b []byte) bool {
	if bytes.Equal(a, b) {
		return true
	}
	var x, y bytes.Buffer
	return json.Compact(&x, a) == nil && json.Compact(&y, b) == nil && bytes.Equal(x.Bytes(), y.Bytes())
}

// Object calls f with each name and value of the object that b is. It is not
// ok when b is no JSON object, when a name has an escape or bytes that are not
// ASCII, or when f is not. Names and values are parts of b.
func Object(b []byte, f func(name, value []byte) bool) (ok bool) {
	rest, ok := First(b, 0, f)
	return ok && space(rest, 0) == len(rest)
}

// First is Object for an object that b begins with, inside as many arrays and
// objects as above says, and gives what follows it.
func First(b []byte, above int, f func(name, value []byte) bool) (rest []byte, ok bool) {
	i := space(b, 0)
	if i >= len(b) || b[i] != '{' || above >= maxDepth {
		return nil, false
	}
	i = space(b, i+1)
	if i < len(b) && b[i] == '}' {
		return b[i+1:], true
	}
	for {
		end := text(b, i)
		if end < 0 {
			return nil, false
		}
		name, plain := Plain(b[i:end])
		if !plain {
			return nil, false
		}
		if i = space(b, end); i >= len(b) || b[i] != ':' {
			return nil, false
		}
		i = space(b, i+1)
		if end = value(b, i, above+1); end < 0 || !f(name, b[i:end]) {
			return nil, false
		}
		if i = space(b, end); i >= len(b) {
			return nil, false
		}
		switch b[i] {
		case ',':
			i = space(b, i+1)
		case '}':
			return b[i+1:], true
		default:
			return nil, false
		}
	}
}

// Array calls f with each value of the array that b is. It is not ok when b is
// no JSON array, or when f is not.
func Array(b []byte, f func(value []byte) bool) (ok bool) {
	i := space(b, 0)
	if i >= len(b) || b[i] != '[' {
		return false
	}
	i = space(b, i+1)
	if i < len(b) && b[i] == ']' {
		return space(b, i+1) == len(b)
	}
	for {
		end := value(b, i, 1)
		if end < 0 || !f(b[i:end]) {
			return false
		}
		if i = space(b, end); i >= len(b) {
			return false
		}
		switch b[i] {
		case ',':
			i = space(b, i+1)
		case ']':
			return space(b, i+1) == len(b)
		default:
			return false
		}
	}
}

// Plain gives what a JSON string says when that is what stands between its
// quotes: no escapes, ASCII alone.
func Plain(v []byte) (s []byte, ok bool) {
	if len(v) < 2 || v[0] != '"' || v[len(v)-1] != '"' {
		return nil, false
	}
	s = v[1 : len(v)-1]
	for _, c := range s {
		if c == '"' || c == '\\' || c < ' ' || c >= 0x80 {
			return nil, false
		}
	}
	return s, true
}

// Uint reads a JSON number that is a whole one.
func Uint(v []byte) (n uint64, ok bool) {
	if len(v) == 0 || len(v) > 19 {
		return 0, false
	}
	for _, c := range v {
		if c < '0' || c > '9' {
			return 0, false
		}
		n = n*10 + uint64(c-'0')
	}
	return n, true
}

// space is where b goes on after white space from i on.
func space(b []byte, i int) int {
	for i < len(b) && (b[i] == ' ' || b[i] == '\n' || b[i] == '\t' || b[i] == '\r') {
		i++
	}
	return i
}

// value is where the value at i ends; -1: it is none.
func value(b []byte, i, depth int) int {
	if i >= len(b) {
		return -1
	}
	switch c := b[i]; c {
	case '"':
		return text(b, i)
	case '{', '[':
		return composite(b, i, depth+1)
	case 't':
		return literal(b, i, "true")
	case 'f':
		return literal(b, i, "false")
	case 'n':
		return literal(b, i, "null")
	}
	return number(b, i)
}

// composite is where the object or array at i ends.
func composite(b []byte, i, depth int) int {
	if depth > maxDepth {
		return -1
	}
	object := b[i] == '{'
	closing := byte(']')
	if object {
		closing = '}'
	}
	i = space(b, i+1)
	if i < len(b) && b[i] == closing {
		return i + 1
	}
	for {
		if object {
			if i = text(b, i); i < 0 {
				return -1
			}
			if i = space(b, i); i >= len(b) || b[i] != ':' {
				return -1
			}
			i = space(b, i+1)
		}
		if i = value(b, i, depth); i < 0 {
			return -1
		}
		if i = space(b, i); i >= len(b) {
			return -1
		}
		switch b[i] {
		case ',':
			i = space(b, i+1)
		case closing:
			return i + 1
		default:
			return -1
		}
	}
}

func literal(b []byte, i int, word string) int {
	if end := i + len(word); end <= len(b) && string(b[i:end]) == word {
		return end
	}
	return -1
}

// text is where the string at i ends.
func text(b []byte, i int) int {
	if i >= len(b) || b[i] != '"' {
		return -1
	}
	for i++; ; {
		for i+32 <= len(b) {
			w := b[i : i+32]
			if marks(binary.LittleEndian.Uint64(w))|marks(binary.LittleEndian.Uint64(w[8:]))|
				marks(binary.LittleEndian.Uint64(w[16:]))|marks(binary.LittleEndian.Uint64(w[24:])) != 0 {
				break
			}
			i += 32
		}
		for i+8 <= len(b) {
			if n := plain(binary.LittleEndian.Uint64(b[i:])); n < 8 {
				i += n
				break
			}
			i += 8
		}
		if i >= len(b) {
			return -1
		}
		switch c := b[i]; {
		case c == '"':
			return i + 1
		case c < ' ':
			return -1
		case c != '\\':
			i++
		default:
			if i = escape(b, i+1); i < 0 {
				return -1
			}
		}
	}
}

// plain counts the bytes, from the lowest, before the first that is a quote, a
// backslash or a control character.
func plain(w uint64) int { return bits.TrailingZeros64(marks(w)) / 8 }

// marks has the highest bit of the first such byte set, and is 0 when there is
// none. Bits above that one may be wrong.
func marks(w uint64) uint64 {
	const ones, highs = 0x0101010101010101, 0x8080808080808080
	// The highest bit of a byte of x - ones is set where that byte of x is 0, or was above 0x80.
	quote, slash := w^ones*'"', w^ones*'\\'
	return ((quote-ones) & ^quote | (slash-ones) & ^slash | (w-ones*0x20) & ^w) & highs
}

func escape(b []byte, i int) int {
	if i >= len(b) {
		return -1
	}
	switch b[i] {
	case 'b', 'f', 'n', 'r', 't', '\\', '/', '"':
		return i + 1
	case 'u':
		if i+5 > len(b) {
			return -1
		}
		for _, c := range b[i+1 : i+5] {
			if (c < '0' || c > '9') && (c|0x20 < 'a' || c|0x20 > 'f') {
				return -1
			}
		}
		return i + 5
	}
	return -1
}

func number(b []byte, i int) int {
	if i < len(b) && b[i] == '-' {
		i++
	}
	switch {
	case i >= len(b):
		return -1
	case b[i] == '0':
		i++
	default:
		if i = digits(b, i); i < 0 {
			return -1
		}
	}
	if i < len(b) && b[i] == '.' {
		if i = digits(b, i+1); i < 0 {
			return -1
		}
	}
	if i < len(b) && b[i]|0x20 == 'e' {
		if i++; i < len(b) && (b[i] == '+' || b[i] == '-') {
			i++
		}
		return digits(b, i)
	}
	return i
}

// digits is where one or more digits at i end.
func digits(b []byte, i int) int {
	start := i
	for i < len(b) && b[i] >= '0' && b[i] <= '9' {
		i++
	}
	if i == start {
		return -1
	}
	return i
}
