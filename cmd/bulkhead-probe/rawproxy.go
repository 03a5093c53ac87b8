package main

import (
	"bufio"
	"errors"
	"fmt"
	"io"
	"net"
	"net/url"
	"os"
	"strings"
	"time"
)

// rawProxyKinds are attempts with bytes that no HTTP library would send.
func rawProxyKinds() map[string]kind {
	return map[string]kind{
		"proxy.raw":    {do: proxyRaw},
		"proxy.tunnel": {do: proxyTunnel},
	}
}

// proxyAddress is the agent's own proxy.
func (t *trial) proxyAddress() (string, error) {
	if t.Proxy != "" {
		return t.Proxy, nil
	}
	u, err := url.Parse(os.Getenv("HTTPS_PROXY"))
	if err != nil || u.Host == "" {
		return "", fmt.Errorf("no proxy: the request names none, and HTTPS_PROXY is %q", os.Getenv("HTTPS_PROXY"))
	}
	return u.Host, nil
}

// proxyRaw sends each of Names, bytes and all, to the proxy. Whatever it answers
// to any request that it saw in them has to be a refusal.
func proxyRaw(t *trial) error {
	proxy, err := t.proxyAddress()
	if err != nil {
		return err
	}
	for _, bytes := range t.Names {
		err := exchange(proxy, bytes)
		var r refused
		if err != nil && !errors.As(err, &r) {
			return fmt.Errorf("proxy %s: %w", proxy, err)
		}
		if t.step(fmt.Sprintf("send %.60q", bytes), err) {
			t.saw("the proxy did as it was told")
			return nil
		}
	}
	return nil
}

// exchange sends bytes and judges every status line of what comes back.
func exchange(proxy, bytes string) error {
	c, err := dialProxy(proxy)
	if err != nil {
		return err
	}
	defer c.Close()
	if err := c.SetDeadline(time.Now().Add(2 * patience)); err != nil {
		return err
	}
	if _, err := io.WriteString(c, bytes); err != nil {
		return refused("closed") // before it took them all
	}
	if w, ok := c.(*net.TCPConn); ok {
		_ = w.CloseWrite() // or it waits for what may follow
	}
	raw, err := io.ReadAll(io.LimitReader(c, 64<<10))
	if len(raw) == 0 {
		if errors.Is(err, os.ErrDeadlineExceeded) {
			return err
		}
		return refused("closed")
	}
	return judgeStatuses(string(raw))
}

// judgeStatuses gives nil when an answer is no refusal, else the last refusal.
func judgeStatuses(raw string) error {
	var last error
	for line := range strings.Lines(raw) {
		if !strings.HasPrefix(line, "HTTP/1.") {
			continue
		}
		f := strings.Fields(line)
		if len(f) < 2 || !strings.HasPrefix(f[1], "4") {
			return otherThanRefused(raw, line)
		}
		last = refused("HTTP " + f[1])
	}
	if last == nil {
		return fmt.Errorf("not HTTP: %.80q", raw)
	}
	if code := denyCode.FindString(raw); code != "" {
		return refused(code)
	}
	return last
}

// otherThanRefused tells an answer of the far side, or an attempt to reach it,
// from a version of HTTP that the proxy does not speak.
func otherThanRefused(raw, line string) error {
	if strings.Contains(line, " 505 ") || strings.Contains(line, " 501 ") {
		return refused("HTTP " + strings.Fields(line)[1])
	}
	if code := denyCode.FindString(raw); code != "" {
		return refused(code) // egress.unreachable and its kin are no refusals: no attack takes them for one
	}
	return nil
}

// proxyTunnel opens a tunnel to the first of Names, which is listed, and sends
// the others, bytes and all, into one each. What comes back has to be a refusal.
func proxyTunnel(t *trial) error {
	proxy, err := t.proxyAddress()
	if err != nil {
		return err
	}
	if len(t.Names) < 2 {
		return errors.New("the request names no listed destination")
	}
	for _, bytes := range t.Names[1:] {
		err := inTunnel(proxy, t.Names[0], bytes)
		var r refused
		if err != nil && !errors.As(err, &r) {
			return err
		}
		if t.step(fmt.Sprintf("in a tunnel to %s: %.40q", t.Names[0], bytes), err) {
			t.saw("the tunnel took another name")
			return nil
		}
	}
	return nil
}

func inTunnel(proxy, name, bytes string) error {
	c, err := dialProxy(proxy)
	if err != nil {
		return err
	}
	defer c.Close()
	if err := c.SetDeadline(time.Now().Add(3 * patience)); err != nil {
		return err
	}
	if _, err := fmt.Fprintf(c, "CONNECT %s HTTP/1.1\r\nHost: %s\r\n\r\n", name, name); err != nil {
		return err
	}
	r := bufio.NewReader(io.LimitReader(c, 64<<10))
	status, err := r.ReadString('\n')
	if f := strings.Fields(status); err != nil || len(f) < 2 || f[1] != "200" {
		return fmt.Errorf("%w: %s is listed and does not answer: %.80q", errUnsupported, name, status)
	}
	for line := "-"; strings.TrimSpace(line) != ""; {
		if line, err = r.ReadString('\n'); err != nil {
			return err
		}
	}
	if name, ok := strings.CutPrefix(bytes, hello); ok {
		bytes = clientHello(name)
	}
	if _, err := io.WriteString(c, bytes); err != nil {
		return refused("closed")
	}
	rest, _ := io.ReadAll(r)
	switch {
	case len(rest) == 0:
		return refused("closed")
	case rest[0] == 21: // a TLS alert (RFC 8446, 5.1)
		return refused("alert")
	case strings.HasPrefix(string(rest), "HTTP/1."):
		return judgeStatuses(string(rest))
	}
	return nil
}

// hello stands in Names for the first message of TLS with a server name.
const hello = "ClientHello "

// clientHello is one (RFC 8446, 4.1.2), with a server name (RFC 6066, 3).
func clientHello(name string) string {
	sized := func(width int, b string) string {
		n := ""
		for i := width - 1; i >= 0; i-- {
			n += string([]byte{byte(len(b) >> (8 * i))}) // #nosec G115 -- one byte of it
		}
		return n + b
	}
	extension := func(kind, body string) string { return kind + sized(2, body) }
	extensions := extension("\x00\x00", sized(2, "\x00"+sized(2, name))) +
		extension("\x00\x0a", sized(2, "\x00\x1d")) + // x25519
		extension("\x00\x0d", sized(2, "\x08\x04\x04\x03")) + // rsa_pss_rsae_sha256, ecdsa_secp256r1_sha256
		extension("\x00\x2b", sized(1, "\x03\x04\x03\x03")) + // TLS 1.3 and 1.2
		extension("\x00\x33", sized(2, "\x00\x1d"+sized(2, strings.Repeat("\x09", 32))))
	body := "\x03\x03" + strings.Repeat("\x42", 32) + "\x00" + sized(2, "\x13\x01\xc0\x2f\xc0\x2b") + "\x01\x00" + sized(2, extensions)
	return "\x16\x03\x01" + sized(2, "\x01"+sized(3, body))
}
