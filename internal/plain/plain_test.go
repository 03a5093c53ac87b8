package plain

import (
	"net/http"
	"strings"
	"testing"
)

func TestWhatIsAPlainGet(t *testing.T) {
	head := func(line string, fields ...string) string {
		return line + "\r\n" + strings.Join(append([]string{"Host: api.example.com"}, fields...), "\r\n") + "\r\n\r\n"
	}
	const get = "GET http://api.example.com/x?a=%41&b=c HTTP/1.1"
	for name, c := range map[string]struct {
		head string
		want bool
	}{
		"a GET":                         {head(get), true},
		"a HEAD":                        {head("HEAD" + get[3:]), true},
		"what browsers send":            {head(get, "User-Agent: x (y; z)", "Accept: */*", "Accept-Encoding: gzip, br", "Cookie: a=b; c=d", "Range: bytes=0-1", "If-None-Match: \"x\""), true},
		"a wish to keep it":             {head(get, "Connection: keep-alive", "Proxy-Connection: keep-alive", "Keep-Alive: timeout=5"), true},
		"a wish to end it":              {head(get, "Connection: CLOSE"), true},
		"credentials for the proxy":     {head(get, "Proxy-Authorization: Basic eA=="), true},
		"bytes above ASCII in a value":  {head(get, "X: \xff\xe9"), true},
		"origin-form":                   {head("GET /x HTTP/1.1"), true},
		"another method":                {head("POST" + get[3:]), false},
		"small letters":                 {head("get" + get[3:]), false},
		"HTTP/1.0":                      {head(get[:len(get)-1] + "0"), false},
		"HTTP/1.10":                     {head(get + "0"), false},
		"two spaces":                    {head(strings.Replace(get, " ", "  ", 1)), false},
		"a tab":                         {head(strings.Replace(get, " HTTP", "\tHTTP", 1)), false},
		"an empty line before":          {"\r\n" + head(get), false},
		"no Host":                       {get + "\r\n\r\n", false},
		"two Hosts":                     {head(get, "host: api.example.com"), false},
		"a Host with a comma":           {get + "\r\nHost: a,b\r\n\r\n", false},
		"a Host with a space in it":     {get + "\r\nHost: a b\r\n\r\n", false},
		"an empty Host":                 {get + "\r\nHost:\r\n\r\n", true}, // absolute-form says it
		"a length":                      {head(get, "Content-Length: 3"), false},
		"a length of nothing":           {head(get, "Content-Length: 0"), false},
		"chunks":                        {head(get, "Transfer-Encoding: chunked"), false},
		"chunks, oddly":                 {head(get, "Transfer-Encoding:\tchunked"), false},
		"an unknown coding":             {head(get, "transfer-encoding: x"), false},
		"an upgrade":                    {head(get, "Connection: Upgrade", "Upgrade: websocket"), false},
		"an upgrade without Connection": {head(get, "Upgrade: h2c"), false},
		"a field by Connection":         {head(get, "Connection: x-mine"), false},
		"two by Connection":             {head(get, "Connection: close, x-mine"), false},
		"Connection twice":              {head(get, "Connection: close", "Connection: x"), false},
		"HTTP/2 settings":               {head(get, "HTTP2-Settings: x"), false},
		"an expectation":                {head(get, "Expect: 100-continue"), false},
		"trailers":                      {head(get, "Trailer: X"), false},
		"TE":                            {head(get, "TE: trailers"), false},
		"a folded field":                {head(get, "X: a", " b"), false},
		"a folded first field":          {get + "\r\n Host: x\r\nHost: x\r\n\r\n", false},
		"a space before the colon":      {head(get, "X : a"), false},
		"no name":                       {head(get, ": a"), false},
		"no colon":                      {head(get, "X"), false},
		"a bare CR in a value":          {head(get, "X: a\rb"), false},
		"a bare LF in a value":          {head(get, "X: a\nContent-Length: 3"), false},
		"a line that ends with LF":      {get + "\nHost: api.example.com\r\n\r\n", false},
		"an end by LF before the end":   {get + "\r\nHost: api.example.com\r\n\nGET / HTTP/1.1\r\n\r\n", false},
		"a NUL":                         {head(get, "X: a\x00"), false},
		"a DEL in the target":           {head("GET http://api.example.com/\x7f HTTP/1.1"), false},
		"a user":                        {head("GET http://a@api.example.com/ HTTP/1.1"), false},
		"an opaque target":              {head("GET http:api.example.com/ HTTP/1.1"), false},
		"a query to split in two ways":  {head("GET http://api.example.com/?a;b HTTP/1.1"), false},
		"a query with half an escape":   {head("GET http://api.example.com/?a=%4 HTTP/1.1"), false},
		"a path with half an escape":    {head("GET http://api.example.com/%4 HTTP/1.1"), false},
		"nothing":                       {"", false},
		"an empty head":                 {"\r\n\r\n", false},
	} {
		if got := Get([]byte(c.head)) != nil; got != c.want {
			t.Errorf("%s: Get takes it: %v, want %v: %q", name, got, c.want, c.head)
		}
	}
}

func TestWhatIsAPlainPost(t *testing.T) {
	head := func(line string, fields ...string) string {
		return line + "\r\n" + strings.Join(append([]string{"Host: gateway"}, fields...), "\r\n") + "\r\n\r\n"
	}
	const post, n = "POST /v1/messages HTTP/1.1", "Content-Length: 12"
	for name, c := range map[string]struct {
		head string
		want int64 // the length; -1: it is not plain
	}{
		"a POST":                          {head(post, n), 12},
		"what clients send":               {head(post, "User-Agent: x", "Authorization: Bearer x", "Content-Type: application/json", "Accept-Encoding: gzip", n), 12},
		"nothing in it":                   {head(post, "Content-Length: 0"), 0},
		"zeros before":                    {head(post, "Content-Length: 007"), 7},
		"white space around":              {head(post, "Content-Length: \t 7 "), 7},
		"a wish to end it":                {head(post, n, "Connection: close"), 12},
		"no length":                       {head(post), -1},
		"an empty length":                 {head(post, "Content-Length:"), -1},
		"a sign":                          {head(post, "Content-Length: +12"), -1},
		"less than nothing":               {head(post, "Content-Length: -1"), -1},
		"two lengths":                     {head(post, n, "content-length: 13"), -1},
		"the same length twice":           {head(post, n, n), -1},
		"a list of lengths":               {head(post, "Content-Length: 12, 12"), -1},
		"hexadecimal":                     {head(post, "Content-Length: 0xc"), -1},
		"a length that no computer holds": {head(post, "Content-Length: 99999999999999999999"), -1},
		"chunks":                          {head(post, "Transfer-Encoding: chunked"), -1},
		"chunks and a length":             {head(post, n, "Transfer-Encoding: chunked"), -1},
		"an unknown coding and a length":  {head(post, n, "Transfer-Encoding: identity"), -1},
		"an expectation":                  {head(post, n, "Expect: 100-continue"), -1},
		"trailers":                        {head(post, n, "Trailer: X"), -1},
		"an upgrade":                      {head(post, n, "Connection: Upgrade", "Upgrade: h2c"), -1},
		"a length with a space":           {head(post, "Content-Length : 12"), -1},
		"a folded length":                 {head(post, "Content-Length: 1", " 2"), -1},
		"a length behind a bare LF":       {head(post, "X: y\n"+n), -1},
		"two Hosts":                       {head(post, n, "Host: gateway"), -1},
		"GET with a length":               {head("GET"+post[4:], n), -1},
		"PUT":                             {head("PUT"+post[4:], n), -1},
		"HTTP/1.0":                        {head(post[:len(post)-1]+"0", n), -1},
	} {
		got := int64(-1)
		if r := Post([]byte(c.head)); r != nil {
			got = r.ContentLength
			if r.Body != http.NoBody {
				t.Errorf("%s: its body is the parser's", name)
			}
			if from, to := Length([]byte(c.head)); c.head[from:to] != r.Header.Get("Content-Length") {
				t.Errorf("%s: its length is at %q", name, c.head[from:to])
			}
		}
		if got != c.want {
			t.Errorf("%s: %d, want %d: %q", name, got, c.want, c.head)
		}
	}
}
