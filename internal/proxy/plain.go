package proxy

import (
	"bufio"
	"bytes"
	"io"
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

// plain gives the request that head is, when it is one whose meaning takes no
// deciding: a GET or HEAD by HTTP/1.1 without a body, one Host, and nothing
// that is between two neighbours only, but for the wish to keep the connection
// or to end it. nil is everything else, right or wrong: net/http's server
// judges it.
//
// head is what ends with the first empty line. net/http's own parser reads it,
// and has to stop exactly there.
func plain(head []byte) *http.Request {
	if !plainLines(head) {
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
	if r.Body != http.NoBody || r.ContentLength != 0 || len(r.TransferEncoding) > 0 || !plainQuery(r.URL.RawQuery) || r.URL.Opaque != "" || r.URL.User != nil {
		return nil
	}
	for _, name := range notPlain {
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

// notPlain are the fields of a request that frame it, or ask the next server
// for more than an answer.
var notPlain = []string{"Content-Length", "Transfer-Encoding", "Trailer", "Te", "Upgrade", "Http2-Settings", "Expect"}

// mayBePlain says whether a plain request can begin with b.
func mayBePlain(b []byte) bool {
	const get, head = "GET ", "HEAD "
	return strings.HasPrefix(get, string(b[:min(len(b), len(get))])) || strings.HasPrefix(head, string(b[:min(len(b), len(head))]))
}

// plainLines is stricter than net/http: each line ends with CRLF and holds no
// other control character, none is folded, there is one Host, and that has no
// odd character.
func plainLines(head []byte) bool {
	line, rest, ok := bytes.Cut(head, crlf)
	if !ok || !mayBePlain(line) || !bytes.HasSuffix(line, []byte(" HTTP/1.1")) || bytes.Count(line, []byte(" ")) != 2 {
		return false
	}
	for _, ch := range line {
		if ch < ' ' || ch >= 0x7f {
			return false
		}
	}
	hosts := 0
	for {
		if line, rest, ok = bytes.Cut(rest, crlf); !ok {
			return false
		}
		if len(line) == 0 {
			return len(rest) == 0 && hosts == 1
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
		if len(name) == 4 && strings.EqualFold(string(name), "host") {
			hosts++
			if len(bytes.Trim(bytes.TrimSpace(value), hostBytes)) > 0 {
				return false
			}
		}
	}
}

// hostBytes are what the names and addresses are made of that a manifest lists.
const hostBytes = "0123456789abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ-._:[]"

var crlf = []byte("\r\n")

// tokens says which bytes a field's name is made of.
var tokens = func() (t [256]bool) {
	for i := range t {
		t[i] = token(byte(i)) // #nosec G115 -- below 256
	}
	return t
}()

// plainQuery says whether httputil.ReverseProxy would pass a query on as it is:
// it drops what two servers could split in two ways.
func plainQuery(q string) bool {
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

// notPassed are the fields of a request that end here (RFC 9110, 7.6.1), are
// written anew, or that the client has no say in.
var notPassed = map[string]bool{
	"Connection": true, "Proxy-Connection": true, "Keep-Alive": true, "Proxy-Authenticate": true, "Proxy-Authorization": true,
	"Host": true, "Forwarded": true, "X-Forwarded-For": true, "X-Forwarded-Host": true, "X-Forwarded-Proto": true,
}

// compose writes a plain request for t.
func compose(w *bytes.Buffer, r *http.Request, t target) error {
	for _, s := range [...]string{r.Method, " ", r.URL.RequestURI(), " HTTP/1.1\r\nHost: ", t.authority(), "\r\n"} {
		_, _ = io.WriteString(w, s)
	}
	if err := r.Header.WriteSubset(w, notPassed); err != nil {
		return err
	}
	_, _ = w.Write(crlf)
	return nil
}
