package wayout

import (
	"bufio"
	"context"
	"io"
	"net"
	"net/http"
	"net/url"
	"strings"
	"testing"
)

func TestPolicyTakesWhatARegistryMayBe(t *testing.T) {
	p, err := policyOf([]string{"registry.example:443", "10.1.2.3:5000", "[fd00::1]:443"})
	if err != nil {
		t.Fatal(err)
	}
	for target, want := range map[string]bool{
		"registry.example:443": true, "REGISTRY.example.:443": true, "10.1.2.3:5000": true, "[fd00::1]:443": true,
		"registry.example:80": false, "other.example:443": false, "10.1.2.4:5000": false, "127.0.0.1:443": false, "registry.example.evil:443": false,
	} {
		host, port, _ := net.SplitHostPort(target)
		n, err := net.LookupPort("tcp", port)
		if err != nil {
			t.Fatal(err)
		}
		if _, reason := p.Check(host, uint16(n)); (reason == nil) != want {
			t.Errorf("%s: %v", target, reason)
		}
	}
	for _, bad := range []string{"*.example.com:443", "host:8080", "registry.example", "registry.example:0", "registry.example:53", "a b:443"} {
		if _, err := policyOf([]string{bad}); err == nil {
			t.Errorf("%s is taken", bad)
		}
	}
}

// TestTheHostsOwnProxyIsUsed lets a proxy of the host's say what it was asked.
func TestTheHostsOwnProxyIsUsed(t *testing.T) {
	for answer, want := range map[string]string{"200 OK": "", "407 Proxy Authentication Required": "407"} {
		ln, err := net.Listen("tcp", "127.0.0.1:0")
		if err != nil {
			t.Fatal(err)
		}
		asked := make(chan *http.Request, 1)
		go func() { // ends with its one connection
			c, err := ln.Accept()
			if err != nil {
				return
			}
			defer func() { _ = c.Close() }()
			r, err := http.ReadRequest(bufio.NewReader(c))
			if err != nil {
				return
			}
			asked <- r
			_, _ = io.WriteString(c, "HTTP/1.1 "+answer+"\r\n\r\nhello from the target")
		}()
		via := &url.URL{Scheme: "http", Host: ln.Addr().String(), User: url.UserPassword("me", "pass")}
		c, err := connect(context.Background(), "registry.example:443", func(*url.URL) (*url.URL, error) { return via, nil })
		r := <-asked
		if r.Method != http.MethodConnect || r.Host != "registry.example:443" || !strings.HasPrefix(r.Header.Get("Proxy-Authorization"), "Basic ") {
			t.Errorf("asked %s %s %v", r.Method, r.Host, r.Header)
		}
		if want != "" {
			if err == nil || !strings.Contains(err.Error(), want) {
				t.Errorf("%v, want %s", err, want)
			}
		} else if err != nil {
			t.Error(err)
		} else if text, err := io.ReadAll(c); err != nil || string(text) != "hello from the target" {
			t.Errorf("%q, %v", text, err)
		}
		_ = ln.Close()
	}
}

func FuzzPolicyOf(f *testing.F) {
	f.Add("registry.example:443")
	f.Add("[::1]:80")
	f.Fuzz(func(t *testing.T, text string) {
		p, err := policyOf([]string{text})
		if err != nil {
			return
		}
		if _, reason := p.Check("unlisted.example", 4711); reason == nil {
			t.Errorf("%q allows everything", text)
		}
	})
}
