package proxy

import (
	"crypto/tls"
	"errors"
	"net"
	"slices"
	"time"
)

// recordHandshake is the type of a TLS record that holds a handshake message
// (RFC 8446, 5.1).
const recordHandshake = 0x16

// extensionECH is encrypted_client_hello (RFC 9849).
const extensionECH = 0xfe0d

// hello is what is read of a ClientHello.
type hello struct {
	name      string
	encrypted bool
}

var errEnough = errors.New("proxy: the ClientHello was read")

// readHello lets crypto/tls parse the ClientHello that c gives, and stops
// there. Nothing is written.
func readHello(c net.Conn) (hello, error) {
	var h hello
	seen := false
	err := tls.Server(c, &tls.Config{
		MinVersion: tls.VersionTLS10, // #nosec G402 -- nothing is ever negotiated; what a server takes is its own business
		GetConfigForClient: func(i *tls.ClientHelloInfo) (*tls.Config, error) {
			h.name, seen = i.ServerName, true
			h.encrypted = slices.Contains(i.Extensions, extensionECH)
			return nil, errEnough
		},
	}).Handshake()
	if seen {
		return h, nil
	}
	if err == nil {
		err = errors.New("no ClientHello")
	}
	return h, err
}

// recorder gives what was seen already, goes on reading, keeps everything, and
// writes nothing.
type recorder struct {
	net.Conn
	seen []byte
	at   int
}

// Read reads at most maxFirst bytes in all.
func (r *recorder) Read(b []byte) (int, error) {
	if r.at == len(r.seen) {
		if len(r.seen) >= maxFirst {
			return 0, errors.New("it is too long")
		}
		n, err := r.Conn.Read(b[:min(len(b), maxFirst-len(r.seen))])
		r.seen = append(r.seen, b[:n]...)
		r.at = len(r.seen)
		return n, err
	}
	n := copy(b, r.seen[r.at:])
	r.at += n
	return n, nil
}

// Write drops the alert that crypto/tls would send.
func (r *recorder) Write(b []byte) (int, error) { return len(b), nil }

// Close leaves the connection open.
func (r *recorder) Close() error { return nil }

// SetDeadline leaves the caller's deadline.
func (r *recorder) SetDeadline(time.Time) error { return nil }

// SetWriteDeadline leaves the caller's deadline.
func (r *recorder) SetWriteDeadline(time.Time) error { return nil }
