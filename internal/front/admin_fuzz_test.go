package front

import (
	"bufio"
	"bytes"
	"io"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"testing"

	"bulkhead/internal/front/protocol"
)

// FuzzAdminRequest holds that what comes to the warden from /admin/agents has the right
// token, one of the methods and paths that there are, and bounded parts; all else is
// refused with a status that says so.
func FuzzAdminRequest(f *testing.F) {
	const right = "Host: h\r\nAuthorization: Bearer P\r\n"
	for _, q := range []string{
		"GET /admin/agents HTTP/1.1\r\n" + right + "\r\n",
		"GET /admin/agents/app HTTP/1.1\r\n" + right + "\r\n",
		"DELETE /admin/agents/app HTTP/1.1\r\n" + right + "\r\n",
		"POST /admin/agents HTTP/1.1\r\n" + right + "Idempotency-Key: k\r\nContent-Length: 2\r\n\r\n{}",
		"POST /admin/agents HTTP/1.1\r\n" + right + "Transfer-Encoding: chunked\r\n\r\n2\r\n{}\r\n0\r\n\r\n",
		"POST /admin/agents HTTP/1.1\r\n" + right + "Content-Length: 9\r\n\r\n{}",
		"DELETE /admin/agents/a%2Fb HTTP/1.1\r\n" + right + "\r\n",
		"DELETE /admin/agents/ HTTP/1.1\r\n" + right + "\r\n",
		"GET /admin/agents HTTP/1.1\r\n" + right + "Authorization: Bearer X\r\n\r\n",
		"GET /admin/agents HTTP/1.1\r\nHost: h\r\nAuthorization: Bearer X\r\n\r\n",
		"GET /admin/agents HTTP/1.1\r\n" + right + "Origin: https://evil.example\r\n\r\n",
		"PATCH http://h/admin/agents HTTP/1.1\r\n" + right + "\r\n",
	} {
		f.Add([]byte(q))
	}
	s := New(protocol.Config{}, io.Discard)
	f.Fuzz(func(t *testing.T, raw []byte) {
		r, err := http.ReadRequest(bufio.NewReader(bytes.NewReader(raw)))
		if err != nil || r.URL.Path != adminPath && !strings.HasPrefix(r.URL.Path, adminPath+"/") {
			return
		}
		a := newAdmin(s, hosting) // anew: wrong tokens of another input would keep this one out
		w := httptest.NewRecorder()
		q, reason := a.request(w, r)
		if reason != nil {
			if status := reason.Envelope().StatusCode; status < 400 || reason.Why == "" || reason.Mend == "" {
				t.Fatalf("%q: %d, %+v", raw, status, reason)
			}
			return
		}
		if !slices.Equal(r.Header["Authorization"], []string{"Bearer P"}) || q.Token != "P" || !slices.Equal(q.Teams, []string{"pair"}) {
			t.Fatalf("%q: %+v", raw, q)
		}
		path := adminPath
		if q.Name != "" {
			path += "/" + q.Name
		}
		if path != r.URL.Path || strings.Contains(q.Name, "/") || len(q.Key) > maxKey || len(q.Body) > maxAdminBody || q.Method != r.Method {
			t.Fatalf("%q: %+v", raw, q)
		}
		switch {
		case q.Method == http.MethodGet && len(q.Body) == 0:
		case q.Method == http.MethodPost && q.Name == "":
		case q.Method == http.MethodDelete && q.Name != "" && len(q.Body) == 0:
		default:
			t.Fatalf("%q: %+v", raw, q)
		}
	})
}
