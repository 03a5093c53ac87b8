// Package plain recognises requests by HTTP/1.1 whose meaning takes no deciding,
// so that they can be served before net/http's server hears of them: by the
// proxy (docs/decisions/0074) and by the gateway's own API (0078).
//
// Nothing here gives a request its meaning. What is here can only say no;
// http.ReadRequest then reads the head from memory and has to stop exactly at
// its end. Whatever is not plain, right or wrong, is net/http's to judge, from
// its first byte on.
package plain

import (
	"bufio"
	"bytes"
	"net/http"
	"strings"
	"sync"
)

// parser lets net/http read one head that is in memory.
type parser struct {
	from bytes.Reader
	buf  *bufio.Reader
}

var parsers = sync.Pool{New: func() any { return &parser{buf: bufio.NewReader(nil)} }}

// Methods of requests, with what follows them.
var (
	without = []string{"GET ", "HEAD "}
	with    = []string{"POST "}
)

// MayGet says whether what [Get] takes can begin with b.
func MayGet(b []byte) bool { return may(b, without) }

// MayPost says whether what [Post] takes can begin with b.
func MayPost(b []byte) bool { return may(b, with) }

func may(b []byte, methods []string) bool {
	for _, m := range methods {
		if strings.HasPrefix(m, string(b[:min(len(b), len(m))])) {
			return true
		}
	}
	return false
}

// Head reads into b, of which n bytes are there already, until they hold the whole
// head of a request, and says where that ends. It ends at 0 when it cannot be a
// head that may takes, or when b is full. Before it waits for more of a head that
// has begun it calls begun.
func Head(b []byte, n int, may func([]byte) bool, begun func(), read func([]byte) (int, error)) (have, end int, err error) {
	for {
		if i := bytes.Index(b[:n], empty); i >= 0 {
			return n, i + len(empty), nil
		}
		if n > 0 {
			begun()
		}
		if n == len(b) || !may(b[:n]) {
			return n, 0, nil
		}
		m, err := read(b[n:])
		if n += m; err != nil {
			return n, 0, err
		}
	}
}

// Length says where the digits of the length are in a head that Post took.
func Length(head []byte) (from, to int) {
	for at := 0; ; {
		end := bytes.Index(head[at:], crlf)
		if end <= 0 {
			return 0, 0 // it has none
		}
		line := head[at : at+end]
		if name, value, _ := bytes.Cut(line, []byte(":")); isLength(name) {
			from = at + len(line) - len(bytes.TrimLeft(value, " \t"))
			return from, from + len(bytes.TrimSpace(value))
		}
		at += end + len(crlf)
	}
}

func isLength(name []byte) bool {
	return len(name) == 14 && strings.EqualFold(string(name), "content-length")
}

// Digits reads a length: at most 18 digits.
func Digits(s []byte) (n int64, ok bool) {
	for _, ch := range s {
		if ch < '0' || ch > '9' {
			return 0, false
		}
		n = n*10 + int64(ch-'0')
	}
	return n, len(s) > 0 && len(s) <= 18
}

// Get gives the request that head is, when it is a GET or HEAD by HTTP/1.1
// without a body, with one Host, and nothing that is between two neighbours only,
// but for the wish to keep the connection or to end it. nil is everything else.
//
// head is what ends with the first empty line.
func Get(head []byte) *http.Request {
	r := parse(head, without)
	if r == nil || r.Body != http.NoBody || r.ContentLength != 0 {
		return nil
	}
	if _, ok := r.Header["Content-Length"]; ok {
		return nil
	}
	return r
}

// Post is Get for a POST with a body whose length is given, once and in digits.
// The request's ContentLength says it; the body follows the head, and to set
// Body is the caller's.
func Post(head []byte) *http.Request {
	r := parse(head, with)
	if r == nil {
		return nil
	}
	given := r.Header["Content-Length"]
	if len(given) != 1 {
		return nil
	}
	if n, ok := Digits([]byte(given[0])); !ok || n != r.ContentLength {
		return nil
	}
	r.Body = http.NoBody // it would read from the parser
	return r
}

// parse has net/http read head, if it holds nothing that is not plain.
func parse(head []byte, methods []string) *http.Request {
	if !lines(head, methods) {
		return nil
	}
	ps := parsers.Get().(*parser)
	defer parsers.Put(ps)
	ps.from.Reset(head)
	ps.buf.Reset(&ps.from)
	r, err := http.ReadRequest(ps.buf)
	if err != nil || ps.buf.Buffered() > 0 || ps.from.Len() > 0 {
		return nil
	}
	if len(r.TransferEncoding) > 0 || !query(r.URL.RawQuery) || r.URL.Opaque != "" || r.URL.User != nil {
		return nil
	}
	for _, name := range not {
		if _, ok := r.Header[name]; ok {
			return nil
		}
	}
	if ua := r.Header["User-Agent"]; len(ua) > 1 || len(ua) == 1 && ua[0] == "" {
		return nil
	}
	if c := r.Header["Connection"]; len(c) > 1 || len(c) == 1 && !strings.EqualFold(c[0], "keep-alive") && !strings.EqualFold(c[0], "close") {
		return nil
	}
	return r
}

// not are the fields of a request that frame it in another way than by a
// length, or ask the next server for more than an answer.
var not = []string{"Transfer-Encoding", "Trailer", "Te", "Upgrade", "Http2-Settings", "Expect"}

// lines is stricter than net/http: each line ends with CRLF and holds no
// other control character, none is folded, there is one Host, and that has no
// odd character, and a length is given once at the most.
func lines(head []byte, methods []string) bool {
	line, rest, ok := bytes.Cut(head, crlf)
	if !ok || !may(line, methods) || !bytes.HasSuffix(line, []byte(" HTTP/1.1")) || bytes.Count(line, []byte(" ")) != 2 {
		return false
	}
	for _, ch := range line {
		if ch < ' ' || ch >= 0x7f {
			return false
		}
	}
	hosts, lengths := 0, 0
	for {
		if line, rest, ok = bytes.Cut(rest, crlf); !ok {
			return false
		}
		if len(line) == 0 {
			return len(rest) == 0 && hosts == 1 && lengths <= 1
		}
		name, value, ok := bytes.Cut(line, []byte(":"))
		if !ok || len(name) == 0 {
			return false
		}
		for _, ch := range name {
			if !tokens[ch] {
				return false
			}
		}
		for _, ch := range value {
			if ch < ' ' && ch != '\t' || ch == 0x7f {
				return false
			}
		}
		switch {
		case len(name) == 4 && strings.EqualFold(string(name), "host"):
			hosts++
			if len(bytes.Trim(bytes.TrimSpace(value), hostBytes)) > 0 {
				return false
			}
		case isLength(name):
			lengths++
		}
	}
}

// hostBytes are what the names and addresses are made of that a manifest lists.
const hostBytes = "0123456789abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ-._:[]"

var (
	crlf  = []byte("\r\n")
	empty = []byte("\r\n\r\n")
)

// Token says whether ch can be in a method or in a field's name (RFC 9110, 5.6.2).
func Token(ch byte) bool { return tokens[ch] }

var tokens = func() (t [256]bool) {
	for i := range t {
		ch := byte(i) // #nosec G115 -- below 256
		t[i] = ch >= '0' && ch <= '9' || ch >= 'A' && ch <= 'Z' || ch >= 'a' && ch <= 'z' || bytes.IndexByte([]byte("!#$%&'*+-.^_`|~"), ch) >= 0
	}
	return t
}()

// query says whether httputil.ReverseProxy would pass a query on as it is: it
// drops what two servers could split in two ways.
func query(q string) bool {
	for i := 0; i < len(q); i++ {
		switch q[i] {
		case ';':
			return false
		case '%':
			if i+2 >= len(q) || !hex(q[i+1]) || !hex(q[i+2]) {
				return false
			}
		}
	}
	return true
}

func hex(ch byte) bool {
	return ch >= '0' && ch <= '9' || ch >= 'a' && ch <= 'f' || ch >= 'A' && ch <= 'F'
}
