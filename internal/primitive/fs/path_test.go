package fs

import (
	"encoding/base64"
	"encoding/json"
	"os"
	"strconv"
	"strings"
	"testing"
	"unicode"
	"unicode/utf8"

	"golang.org/x/text/unicode/norm"

	"bulkhead/internal/deny"
)

type pathCase struct{ verdict, path string }

// pathCases reads testdata/paths.txt.
func pathCases(t testing.TB) (out []pathCase) {
	t.Helper()
	data, err := os.ReadFile("testdata/paths.txt")
	if err != nil {
		t.Fatal(err)
	}
	for i, line := range strings.Split(string(data), "\n") {
		if line == "" || line[0] == '#' {
			continue
		}
		verdict, text, ok := strings.Cut(line, "\t")
		var path string
		if b, coded := strings.CutPrefix(text, "base64:"); coded {
			raw, err := base64.StdEncoding.DecodeString(b)
			ok, path = ok && err == nil, string(raw)
		} else {
			end := strings.LastIndexByte(text, '"') + 1
			ok = ok && json.Unmarshal([]byte(text[:end]), &path) == nil
			if n, more := strings.CutPrefix(text[end:], "*"); more {
				times, err := strconv.Atoi(n)
				ok = ok && err == nil
				path = strings.Repeat(path, times)
			}
		}
		if !ok {
			t.Fatalf("testdata/paths.txt:%d is malformed: %s", i+1, line)
		}
		out = append(out, pathCase{verdict, path})
	}
	return out
}

func verdict(r *deny.Reason) string {
	if r == nil {
		return "ok"
	}
	return strings.TrimPrefix(string(r.Code), "tools.")
}

func TestEveryPathOfTheListGetsItsVerdict(t *testing.T) {
	cases := pathCases(t)
	if len(cases) < 300 {
		t.Errorf("there are %d cases", len(cases))
	}
	for _, c := range cases {
		if _, r := Parse("fs_write", c.path); verdict(r) != c.verdict {
			t.Errorf("%.60q: %s, and %s is expected (%v)", c.path, verdict(r), c.verdict, r)
		}
	}
}

func FuzzParse(f *testing.F) {
	for _, c := range pathCases(f) {
		if len(c.path) < 300 {
			f.Add(c.path)
		}
	}
	f.Fuzz(func(t *testing.T, s string) {
		p, r := Parse("fs_write", s)
		if r != nil {
			if r.Code == deny.ToolInvalid && len(r.Fields) == 0 || r.Why == "" || r.Mend == "" {
				t.Errorf("%q: the refusal says too little: %+v", s, r)
			}
			return
		}
		if p.Root() {
			if s != "" && s != "." && s != "/" {
				t.Errorf("%q was taken for the root", s)
			}
			return
		}
		if p.String() != s || !utf8.ValidString(s) || len(s) > MaxPath || len(p.names) > MaxDepth || !norm.NFC.IsNormalString(s) {
			t.Errorf("%q became %q", s, p)
		}
		for _, n := range p.names {
			if n == "" || n == "." || n == ".." || len(n) > MaxName || strings.ContainsAny(n, "/\\\x00") || strings.HasSuffix(n, ".") || strings.TrimSpace(n) != n {
				t.Errorf("%q has the name %q", s, n)
			}
			for _, c := range n {
				if unicode.IsControl(c) || unicode.Is(unicode.Cf, c) || c == utf8.RuneError {
					t.Errorf("%q has %U", s, c)
				}
			}
			// A program that maps compatibility forms must see the same names.
			if mapped := norm.NFKC.String(n); strings.ContainsAny(mapped, `/\`) || mapped == ".." || mapped == "." {
				t.Errorf("%q maps to %q", n, mapped)
			}
		}
	})
}
