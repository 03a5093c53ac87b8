package net

import (
	"context"
	"crypto/tls"
	"fmt"
	stdnet "net"
	"net/http"
	"strconv"
	"time"
)

// newTransport makes the one transport: without a proxy of the environment,
// redirects or decompression of its own.
func newTransport(cfg *Config) *http.Transport {
	protocols := new(http.Protocols)
	protocols.SetHTTP1(true)
	return &http.Transport{
		Proxy: nil, DisableCompression: true, Protocols: protocols,
		DialContext: func(ctx context.Context, _, addr string) (stdnet.Conn, error) {
			// addr is always a target's destination.
			host, text, err := stdnet.SplitHostPort(addr)
			if err != nil {
				return nil, err
			}
			port, err := strconv.ParseUint(text, 10, 16)
			if err != nil {
				return nil, fmt.Errorf("port of %q: %w", addr, err)
			}
			return cfg.Dial(ctx, host, uint16(port))
		},
		TLSClientConfig:     &tls.Config{MinVersion: tls.VersionTLS12, RootCAs: cfg.Roots},
		TLSHandshakeTimeout: 10 * time.Second,
		// Each request is checked anew, whatever connection it goes over.
		MaxIdleConns: 16, MaxIdleConnsPerHost: 4, IdleConnTimeout: 15 * time.Second,
		MaxResponseHeaderBytes: 64 << 10, ReadBufferSize: 16 << 10,
	}
}
