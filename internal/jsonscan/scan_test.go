package jsonscan

import (
	"bytes"
	"encoding/json"
	"slices"
	"strings"
	"testing"

	"pgregory.net/rapid"
)

var texts = []string{
	``, ` `, `null`, `true`, `fals`, `nul`, `0`, `-0`, `01`, `-`, `1.`, `1.5e+3`, `1e`, `1E-2`, `.5`, `+1`, `1 2`,
	`""`, `"`, `"a`, `"\u00e9"`, `"\u00g0"`, `"\x"`, `"\"`, "\"\n\"", "\"\x1f\"", "\"\x7f\xff\x80\"", `"12345678"`, `"1234567\"9012345678"`, "\"1234567\x009\"",
	`{}`, `{ }`, `[]`, `[ ]`, `[1,]`, `[,1]`, `[1 2]`, `{"a":1}`, `{"a" : [1 , {"b":null}] }`, `{"a":1,}`, `{"a"}`, `{a:1}`, `{"a":1 "b":2}`, `{"":""}`, `{"a\u0062":1}`,
	` [1] `, "\t[1]\r\n", "[1]\v", `[1]x`, `{}}`, `]`, `}`, `{]`, "\ufeff[]",
	strings.Repeat("[", 10000) + strings.Repeat("]", 10000), strings.Repeat("[", 10001) + strings.Repeat("]", 10001),
	strings.Repeat(`{"a":`, 10001) + "1" + strings.Repeat("}", 10001),
}

func TestItAcceptsWhatEncodingJSONDoes(t *testing.T) {
	for _, s := range texts {
		check(t, []byte(s))
	}
	// Every byte, at every place of a word of eight.
	for c := range 256 {
		for at := range 17 {
			b := []byte(`"` + strings.Repeat("x", 17) + `"`)
			b[1+at] = byte(c)
			check(t, b)
		}
	}
}

func check(t interface{ Fatalf(string, ...any) }, b []byte) {
	if got, want := Valid(b), json.Valid(b); got != want {
		t.Fatalf("Valid(%.100q) is %v, encoding/json says %v", b, got, want)
	}
	var names, values []string
	if Object(b, func(name, value []byte) bool {
		names, values = append(names, string(name)), append(values, string(value))
		return true
	}) {
		d := json.NewDecoder(bytes.NewReader(b))
		if tok, err := d.Token(); err != nil || tok != json.Delim('{') {
			t.Fatalf("Object(%.100q) is ok: %v, %v", b, tok, err)
		}
		for i := range names {
			var v json.RawMessage
			name, err := d.Token()
			if err == nil {
				err = d.Decode(&v)
			}
			if err != nil || name != names[i] || string(v) != values[i] {
				t.Fatalf("Object(%.100q) has %q: %q, encoding/json %v: %q, %v", b, names[i], values[i], name, v, err)
			}
		}
		if d.More() {
			t.Fatalf("Object(%.100q) left something out", b)
		}
	}
	var all []string
	if Array(b, func(v []byte) bool { all = append(all, string(v)); return true }) {
		var want []json.RawMessage
		err := json.Unmarshal(b, &want)
		if err != nil || !slices.EqualFunc(all, want, func(s string, r json.RawMessage) bool { return s == string(r) }) {
			t.Fatalf("Array(%.100q) has %q, encoding/json %q, %v", b, all, want, err)
		}
	} else if t := bytes.TrimLeft(b, " \t\r\n"); len(t) > 0 && t[0] == '[' && json.Valid(b) && len(b) < 10000 {
		panic("Array leaves out " + string(b))
	}
}

func TestWhatWasEncodedIsTakenApart(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		want := rapid.MapOf(rapid.StringMatching(`[a-z_]{0,12}`), rapid.String()).Draw(t, "object")
		b, err := json.Marshal(want)
		if err != nil {
			t.Fatal(err)
		}
		got := map[string]string{}
		if !Object(b, func(name, value []byte) bool {
			var s string
			err := json.Unmarshal(value, &s)
			got[string(name)] = s
			return err == nil
		}) || len(got) != len(want) {
			t.Fatalf("%s became %q", b, got)
		}
		for k, v := range want {
			var s string
			enc, _ := json.Marshal(v) // of strings; what is not UTF-8 is replaced
			if json.Unmarshal(enc, &s) != nil || got[k] != s {
				t.Fatalf("%q of %s became %q", k, b, got[k])
			}
		}
	})
}

func FuzzScan(f *testing.F) {
	for _, s := range texts {
		if len(s) < 1000 {
			f.Add([]byte(s))
		}
	}
	f.Fuzz(func(t *testing.T, b []byte) {
		check(t, b)
		if s, ok := Plain(b); ok && json.Valid(b) {
			var want string
			if json.Unmarshal(b, &want) != nil || want != string(s) {
				t.Fatalf("Plain(%q) is %q, not %q", b, s, want)
			}
		}
		if n, ok := Uint(b); ok && json.Valid(b) {
			var want uint64
			if json.Unmarshal(b, &want) != nil || want != n {
				t.Fatalf("Uint(%q) is %d, not %d", b, n, want)
			}
		}
	})
}

func BenchmarkValid(b *testing.B) {
	text := []byte(`{"note":"` + strings.Repeat("a short word, ", 70) + `","n":[1,2,3]}`)
	b.Run("jsonscan", func(b *testing.B) {
		for b.Loop() {
			Valid(text)
		}
	})
	b.Run("encoding/json", func(b *testing.B) {
		for b.Loop() {
			json.Valid(text)
		}
	})
}
