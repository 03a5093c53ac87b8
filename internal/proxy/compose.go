package proxy

import (
	"bytes"
	"io"
	"net/http"
)

var crlf = []byte("\r\n")

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
