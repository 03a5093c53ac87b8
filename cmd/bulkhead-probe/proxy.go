package main

import (
	"bufio"
	"errors"
	"fmt"
	"io"
	"net/url"
	"os"
	"regexp"
	"strings"
	"time"
)

// denyCode finds the rule that the gateway names in a refusal (deny.Code).
var denyCode = regexp.MustCompile(`\b(egress|identity|operator|host)\.[a-z_]+\b`)

// proxyConnect asks the agent's proxy for a tunnel to each name.
func proxyConnect(t *trial) error {
	proxy := t.Proxy
	if proxy == "" {
		u, err := url.Parse(os.Getenv("HTTPS_PROXY"))
		if err != nil || u.Host == "" {
			return fmt.Errorf("no proxy: the request names none, and HTTPS_PROXY is %q", os.Getenv("HTTPS_PROXY"))
		}
		proxy = u.Host
	}
	for _, name := range t.Names {
		err := connectBy(proxy, name)
		var r refused
		if err != nil && !errors.As(err, &r) {
			return fmt.Errorf("proxy %s: %w", proxy, err) // the proxy itself did not answer
		}
		if t.step("CONNECT "+name, err) {
			t.saw("the proxy opened a tunnel to %s", name)
			return nil
		}
	}
	return nil
}

func connectBy(proxy, name string) error {
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
	if err != nil {
		return fmt.Errorf("answer: %w", err)
	}
	f := strings.Fields(status)
	if len(f) < 2 || !strings.HasPrefix(f[0], "HTTP/1.") {
		return fmt.Errorf("not HTTP: %q", status)
	}
	if strings.HasPrefix(f[1], "2") {
		return nil
	}
	if err := c.SetReadDeadline(time.Now().Add(patience / 4)); err != nil {
		return err
	}
	rest, _ := io.ReadAll(r) // to the end, or as much as came
	if code := denyCode.FindString(string(rest)); code != "" {
		return refused(code)
	}
	return refused("HTTP " + f[1])
}
