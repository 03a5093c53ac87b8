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

var errOddHello = errors.New("it does not begin with a TLS handshake record")

// oddHello says whether b begins like TLS that some servers take although no
// ClientHello is its first record, and whether b is enough to tell. OpenSSL 3.0
// skips an empty ChangeCipherSpec record of any minor version before a
// ClientHello, older ones skip warnings (CVE-2016-8610), and all take a
// ClientHello in SSLv2's form (RFC 5246, E.2), which has no place for a server
// name.
func oddHello(b []byte) (odd, enough bool) {
	switch {
	case b[0] >= 0x14 && b[0] <= 0x18: // the types of records (RFC 8446, 5.1; RFC 6520, 3)
		return begins(b[1:], span{3, 3})
	case b[0]&0x80 != 0:
		// Length, type 1, and a version: 2.0, or 3.0 and later.
		if odd, enough = begins(b[1:], span{0, 0xff}, span{1, 1}, span{3, 3}); !odd && enough {
			odd, enough = begins(b[1:], span{0, 0xff}, span{1, 1}, span{0, 0}, span{2, 2})
		}
		if !odd {
			return odd, enough
		}
		// The three parts that follow make up the length. Others, like Sun RPC's
		// records, can begin the same way so far.
		if len(b) < 11 {
			return false, false
		}
		at := func(i int) int { return int(b[i])<<8 | int(b[i+1]) }
		return at(0)&0x7fff == 9+at(5)+at(7)+at(9), true
	}
	return false, true
}

// span is what a byte may be.
type span struct{ from, to byte }

// begins says whether b begins with bytes within spans, and whether b is long
// enough to tell.
func begins(b []byte, spans ...span) (does, enough bool) {
	for i, s := range spans {
		if i == len(b) {
			return false, false
		}
		if b[i] < s.from || b[i] > s.to {
			return false, true
		}
	}
	return true, true
}
