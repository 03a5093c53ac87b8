package dialer

import (
	"bytes"
	"errors"
	"io"
	"strings"
	"testing"
	"testing/iotest"
)

func TestAnswersOfProxies(t *testing.T) {
	for name, c := range map[string]struct {
		says   string
		code   int
		status string
		early  string
	}{
		"Squid connects":               {"HTTP/1.1 200 Connection established\r\n\r\n", 200, "200 Connection established", ""},
		"an old one connects":          {"HTTP/1.0 200 OK\r\nVia: x\r\n\r\n", 200, "200 OK", ""},
		"without a phrase":             {"HTTP/1.1 200\r\n\r\n", 200, "200", ""},
		"with an empty phrase":         {"HTTP/1.1 204 \r\n\r\n", 204, "204", ""},
		"bare line ends":               {"HTTP/1.1 200 OK\nA: b\n\n", 200, "200 OK", ""},
		"the far side speaks at once":  {"HTTP/1.1 200 OK\r\n\r\nSSH-2.0-x\r\n", 200, "200 OK", "SSH-2.0-x\r\n"},
		"a length that means nothing":  {"HTTP/1.1 200 OK\r\nContent-Length: 4\r\n\r\nabcd", 200, "200 OK", "abcd"},
		"an interim answer":            {"HTTP/1.1 100 Continue\r\n\r\nHTTP/1.1 200 OK\r\n\r\nx", 200, "200 OK", "x"},
		"a refusal with its page":      {"HTTP/1.1 403 Forbidden\r\nContent-Length: 3\r\n\r\nno\n", 403, "403 Forbidden", "no\n"},
		"a folded line":                {"HTTP/1.1 200 OK\r\nA: b\r\n c\r\n\r\n", 200, "200 OK", ""},
		"a phrase for terminals":       {"HTTP/1.1 407 \x1b[31mno\xff\r\n\r\n", 407, "407 ?[31mno?", ""},
		"TLS":                          {"\x15\x03\x01\x00\x02\x02\x46", 0, "", ""},
		"SSH":                          {"SSH-2.0-OpenSSH\r\n", 0, "", ""},
		"a page and no header":         {"<html>", 0, "", ""},
		"HTTP/2":                       {"HTTP/2 200\r\n\r\n", 0, "", ""},
		"a code of two digits":         {"HTTP/1.1 20 OK\r\n\r\n", 0, "", ""},
		"a code of four digits":        {"HTTP/1.1 2000 OK\r\n\r\n", 0, "", ""},
		"a code that begins with zero": {"HTTP/1.1 020 OK\r\n\r\n", 0, "", ""},
		"a line without a colon":       {"HTTP/1.1 200 OK\r\nnonsense\r\n\r\n", 0, "", ""},
		"a name that is empty":         {"HTTP/1.1 200 OK\r\n: x\r\n\r\n", 0, "", ""},
		"half a header":                {"HTTP/1.1 200 OK\r\nA: b\r\n", 0, "", ""},
		"nothing":                      {"", 0, "", ""},
		"only interim answers":         {strings.Repeat("HTTP/1.1 100 Continue\r\n\r\n", 10_000), 0, "", ""},
		"endless fields":               {"HTTP/1.1 200 OK\r\n" + strings.Repeat("A: b\r\n", 10_000), 0, "", ""},
		"one endless line":             {"HTTP/1.1 200 " + strings.Repeat("x", 1<<20), 0, "", ""},
	} {
		for how, r := range map[string]io.Reader{
			"whole": strings.NewReader(c.says), "by bytes": iotest.OneByteReader(strings.NewReader(c.says)), "with EOF": iotest.DataErrReader(strings.NewReader(c.says)),
		} {
			a, err := readAnswer(r)
			if c.code == 0 {
				if err == nil {
					t.Errorf("%s, %s: taken as %+v", name, how, a)
				}
				continue
			}
			rest, _ := io.ReadAll(r)
			if err != nil || a.code != c.code || a.status != c.status || string(a.early)+string(rest) != c.early {
				t.Errorf("%s, %s: %+v, early %q then %q, %v", name, how, a, a.early, rest, err)
			}
		}
	}
}

func TestAFailingReadIsNotAnAnswer(t *testing.T) {
	broken := errors.New("broken")
	if _, err := readAnswer(io.MultiReader(strings.NewReader("HTTP/1.1 200 OK\r\n"), iotest.ErrReader(broken))); !errors.Is(err, broken) {
		t.Fatal(err)
	}
}

func FuzzAnswer(f *testing.F) {
	f.Add([]byte("HTTP/1.1 200 Connection established\r\nA: b\r\n\r\nearly"))
	f.Add([]byte("HTTP/1.1 100 Continue\r\n\r\nHTTP/1.0 403 No\n\n"))
	f.Add([]byte("HTTP/1.1 200 OK\r\n: x\r\n\r\n"))
	f.Fuzz(func(t *testing.T, said []byte) {
		r := bytes.NewReader(said)
		a, err := readAnswer(r)
		read := len(said) - r.Len()
		if read > maxAnswer {
			t.Fatalf("%d bytes were read", read)
		}
		slow, serr := readAnswer(iotest.OneByteReader(bytes.NewReader(said)))
		if (err == nil) != (serr == nil) {
			t.Fatalf("by pieces it is another: %v, %v", err, serr)
		}
		if err != nil {
			return
		}
		if a.code < 200 || a.code > 999 || slow.code != a.code || slow.status != a.status {
			t.Fatalf("%+v, by pieces %+v", a, slow)
		}
		if !bytes.HasSuffix(said[:read], a.early) {
			t.Fatalf("early %q is not what came last", a.early)
		}
		head := said[:read-len(a.early)]
		if !bytes.HasSuffix(head, []byte("\n\n")) && !bytes.HasSuffix(head, []byte("\n\r\n")) {
			t.Fatalf("the header %q does not end in an empty line", head)
		}
		if len(a.status) > maxStatus || strings.ContainsFunc(a.status, func(c rune) bool { return c < ' ' || c > '~' }) {
			t.Fatalf("status %q", a.status)
		}
	})
}
