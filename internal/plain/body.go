package plain

import (
	"io"
	"net/http"
)

// Exact gives a request's body that ends by itself once its length was read.
// Who passes it on must not have to ask the server's own for its end: net/http
// closes that one when the answer begins, which may be before the transport has
// asked, and the transport then takes the connection down in the middle of the
// answer. A length that is unknown is left as it is: its end is read before the
// far side has the whole of it.
func Exact(body io.ReadCloser, length int64) io.ReadCloser {
	if body == nil || body == http.NoBody || length <= 0 {
		return body
	}
	return &exact{body, length}
}

type exact struct {
	io.ReadCloser
	left int64
}

// Read reads at most what is left.
func (b *exact) Read(p []byte) (int, error) {
	if b.left == 0 {
		return 0, io.EOF
	}
	n, err := b.ReadCloser.Read(p[:min(int64(len(p)), b.left)])
	if b.left -= int64(n); b.left == 0 {
		err = io.EOF
	}
	return n, err
}
