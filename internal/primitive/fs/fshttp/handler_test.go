package fshttp

import (
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/json"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"runtime"
	"strings"
	"sync"
	"sync/atomic"
	"testing"

	"bulkhead/internal/deny"
	"bulkhead/internal/primitive/fs"
	"bulkhead/internal/primitive/storage"
	"bulkhead/internal/record"
	"bulkhead/internal/tool"
)

type journal struct {
	mu      sync.Mutex
	records []record.Record
}

func (j *journal) Write(_ context.Context, r record.Record) error { j.Note(r); return nil }

func (j *journal) Note(r record.Record) {
	j.mu.Lock()
	defer j.mu.Unlock()
	j.records = append(j.records, r)
}

func (j *journal) count(v record.Verdict) (n int) {
	j.mu.Lock()
	defer j.mu.Unlock()
	for _, r := range j.records {
		if r.Verdict == v {
			n++
		}
	}
	return n
}

func serve(t *testing.T, limits storage.Limits, allowed string, rate int) (*httptest.Server, *journal, *storage.Budget) {
	t.Helper()
	dir, err := os.OpenRoot(t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	defer dir.Close()
	b := storage.New(limits)
	s, err := fs.Open(fs.Config{Dir: dir, Budget: b})
	if err != nil {
		t.Fatal(err)
	}
	table, err := tool.NewTable(s.Tools()...)
	if err != nil {
		t.Fatal(err)
	}
	j := &journal{}
	mux := http.NewServeMux()
	mux.Handle(Pattern, Handler(tool.New(tool.Config{Table: table, Journal: j, Allowed: []string{allowed}, Rate: rate}),
		func(*http.Request) tool.Caller { return tool.Caller{Team: "t", Agent: "a"} }))
	srv := httptest.NewServer(mux)
	t.Cleanup(func() { srv.Close(); _ = s.Close() })
	return srv, j, b
}

// answer is a response that has been read.
type answer struct {
	StatusCode    int
	Status        string
	Header        http.Header
	ContentLength int64
}

func do(t *testing.T, method, url string, body io.Reader, header ...string) (answer, []byte) {
	t.Helper()
	r, err := http.NewRequestWithContext(t.Context(), method, url, body)
	if err != nil {
		t.Fatal(err)
	}
	for i := 0; i+1 < len(header); i += 2 {
		r.Header.Set(header[i], header[i+1])
	}
	resp, err := http.DefaultTransport.RoundTrip(r)
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	got, err := io.ReadAll(resp.Body)
	if err != nil {
		t.Fatal(err)
	}
	return answer{resp.StatusCode, resp.Status, resp.Header, resp.ContentLength}, got
}

var roomy = storage.Limits{Bytes: 1 << 30, Files: 1000}

func TestAFileGoesInAndOutAndIsNeverAPage(t *testing.T) {
	srv, j, _ := serve(t, roomy, "fs", 1000)
	url := srv.URL + "/v1/files/site/ind%20ex%C3%A9.html"
	resp, got := do(t, http.MethodPut, url, strings.NewReader("<script>alert(1)</script>"), "Content-Type", "text/html")
	var info fs.Info
	if err := json.Unmarshal(got, &info); err != nil || resp.StatusCode != 200 || info.Path != "site/ind exé.html" || info.SizeBytes != 25 || info.ContentType != "text/html" {
		t.Fatal(resp.Status, string(got))
	}
	resp, got = do(t, http.MethodGet, url, nil)
	if resp.StatusCode != 200 || string(got) != "<script>alert(1)</script>" || resp.ContentLength != 25 {
		t.Errorf("%s %q", resp.Status, got)
	}
	for name, want := range map[string]string{
		"Content-Type": "text/html", "X-Content-Type-Options": "nosniff", "Content-Disposition": "attachment; filename*=UTF-8''ind%20ex%C3%A9.html",
		"Content-Security-Policy": "sandbox; default-src 'none'",
	} {
		if got := resp.Header.Get(name); got != want {
			t.Errorf("%s is %q, not %q", name, got, want)
		}
	}
	if resp, got = do(t, http.MethodGet, url, nil, "Range", "bytes=1-6"); resp.StatusCode != 206 || string(got) != "script" {
		t.Errorf("%s %q", resp.Status, got)
	}
	if resp, got = do(t, http.MethodHead, url, nil); resp.StatusCode != 200 || len(got) != 0 || resp.ContentLength != 25 {
		t.Errorf("%s %q", resp.Status, got)
	}
	if resp, _ = do(t, http.MethodGet, url, nil, "If-None-Match", resp.Header.Get("ETag")); resp.StatusCode != 304 {
		t.Error(resp.Status)
	}
	if j.count(record.Started) != 1 || j.count(record.Allowed) != 5 {
		t.Errorf("%+v", j.records)
	}
}

func TestRefusalsAreThoseOfTheTools(t *testing.T) {
	srv, j, b := serve(t, storage.Limits{Bytes: 1000, Files: 10}, "fs", 1000)
	for _, c := range []struct {
		method, path string
		body         io.Reader
		want         deny.Code
	}{
		{"GET", "nowhere", nil, deny.ToolMissing},
		{"GET", "a%2f..%2f..%2fb", nil, deny.ToolUnsafe},
		{"GET", "%2e%2e%2fb", nil, deny.ToolUnsafe},
		{"GET", "%252e%252e%252fb", nil, deny.ToolUnsafe},
		{"GET", "%2fetc%2fpasswd", nil, deny.ToolUnsafe},
		{"GET", "a%00b", nil, deny.ToolUnsafe},
		{"GET", "a%5cb", nil, deny.ToolUnsafe},
		{"GET", "%ff", nil, deny.ToolUnsafe},
		{"PUT", "%c0%ae%c0%ae/x", strings.NewReader("x"), deny.ToolUnsafe},
		{"PUT", "big", strings.NewReader(strings.Repeat("x", 1001)), deny.ToolQuota},
		{"PUT", "big", io.MultiReader(strings.NewReader(strings.Repeat("x", 1001))), deny.ToolQuota},
	} {
		resp, got := do(t, c.method, srv.URL+"/v1/files/"+c.path, c.body)
		var e deny.Envelope
		if err := json.Unmarshal(got, &e); err != nil || e.Where != "tools/"+string(c.want) || resp.StatusCode != e.StatusCode {
			t.Errorf("%s %s: %s %s, and %s is expected", c.method, c.path, resp.Status, got, c.want)
		}
	}
	if resp, _ := do(t, http.MethodDelete, srv.URL+"/v1/files/a", nil); resp.StatusCode != 405 || resp.Header.Get("Allow") == "" {
		t.Error(resp.Status)
	}
	if n, f := b.Used(); n != 0 || f != 0 {
		t.Errorf("%d bytes and %d files are counted", n, f)
	}
	if j.count(record.Denied) != 11 {
		t.Errorf("%+v", j.records)
	}
	srv, _, _ = serve(t, roomy, "mem", 1000)
	if resp, got := do(t, http.MethodPut, srv.URL+"/v1/files/a", strings.NewReader("x")); resp.StatusCode != 403 || !bytes.Contains(got, []byte(deny.ToolNotAllowed)) {
		t.Errorf("%s %s", resp.Status, got)
	}
	srv, _, _ = serve(t, roomy, "fs", 1)
	_, _ = do(t, http.MethodGet, srv.URL+"/v1/files/a", nil)
	if resp, got := do(t, http.MethodGet, srv.URL+"/v1/files/a", nil); resp.StatusCode != 429 || resp.Header.Get("Retry-After") == "" {
		t.Errorf("%s %s", resp.Status, got)
	}
}

func TestABodyThatBreaksOffLeavesNothing(t *testing.T) {
	srv, j, b := serve(t, roomy, "fs", 1000)
	c, err := net.Dial("tcp", srv.Listener.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	if _, err := io.WriteString(c, "PUT /v1/files/a HTTP/1.1\r\nHost: x\r\nContent-Length: 200000\r\n\r\n"+strings.Repeat("x", 100_000)); err != nil {
		t.Fatal(err)
	}
	if err := c.(*net.TCPConn).CloseWrite(); err != nil {
		t.Fatal(err)
	}
	if got, err := io.ReadAll(c); err != nil || !bytes.HasPrefix(got, []byte("HTTP/1.1 400 ")) {
		t.Errorf("%s %v", got, err)
	}
	srv.Close() // waits for the handler
	if n, f := b.Used(); n != 0 || f != 0 {
		t.Errorf("%d bytes and %d files are counted", n, f)
	}
	if j.count(record.Denied)+j.count(record.Failed) != 1 {
		t.Errorf("%+v", j.records)
	}
}

// TestAHundredMebibytesDoNotGoThroughMemory sends and fetches the largest file
// and looks at the heap meanwhile. Client and server are this process.
func TestAHundredMebibytesDoNotGoThroughMemory(t *testing.T) {
	if testing.Short() {
		t.Skip("100 MiB are written")
	}
	srv, _, _ := serve(t, roomy, "fs", 1000)
	var peak atomic.Uint64
	watch := func(n int64) {
		if n%(8<<20) < 64<<10 {
			var m runtime.MemStats
			runtime.ReadMemStats(&m)
			peak.Store(max(peak.Load(), m.HeapAlloc))
		}
	}
	sent, got := sha256.New(), sha256.New()
	resp, out := do(t, http.MethodPut, srv.URL+"/v1/files/big.bin", io.TeeReader(&pattern{left: fs.MaxFile, watch: watch}, sent))
	if resp.StatusCode != 200 {
		t.Fatal(resp.Status, string(out))
	}
	req, err := http.NewRequestWithContext(t.Context(), http.MethodGet, srv.URL+"/v1/files/big.bin", nil)
	if err != nil {
		t.Fatal(err)
	}
	back, err := http.DefaultTransport.RoundTrip(req)
	if err != nil {
		t.Fatal(err)
	}
	defer back.Body.Close()
	if n, err := io.Copy(got, back.Body); n != fs.MaxFile || err != nil || !bytes.Equal(sent.Sum(nil), got.Sum(nil)) {
		t.Errorf("%d bytes came back: %v", n, err)
	}
	if p := peak.Load(); p > 24<<20 {
		t.Errorf("the heap had %d bytes", p)
	}
	resp, out = do(t, http.MethodPut, srv.URL+"/v1/files/big2.bin", &pattern{left: fs.MaxFile + 1, watch: watch})
	if resp.StatusCode != 413 {
		t.Error(resp.Status, string(out))
	}
}

// pattern gives bytes, and says how many are left.
type pattern struct {
	left  int64
	watch func(int64)
}

func (p *pattern) Read(b []byte) (int, error) {
	if p.left == 0 {
		return 0, io.EOF
	}
	b = b[:min(int64(len(b)), p.left)]
	for i := range b {
		b[i] = byte((p.left - int64(i)) * 7 >> 3)
	}
	p.left -= int64(len(b))
	p.watch(p.left)
	return len(b), nil
}

func TestFileNamesAreEncodedAsRFC8187Says(t *testing.T) {
	for in, want := range map[string]string{"a.txt": "a.txt", "a b": "a%20b", `a"b`: "a%22b", "é;": "%C3%A9%3B", "\x01": "%01"} {
		if got := encode(in); got != want {
			t.Errorf("%q: %s, not %s", in, got, want)
		}
	}
}
