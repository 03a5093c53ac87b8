package main

import (
	"errors"
	"fmt"
	"io"
	"net"
	"net/url"
	"os"
	"regexp"
	"strings"
	"time"

	"bulkhead/internal/wire"
)

// gatewayCode finds the rule that a gateway names in a refusal (deny.Code); the
// header Bulkhead-Denied comes first.
var gatewayCode = regexp.MustCompile(`\b(messages|identity|egress|tools)\.[a-z_]+\b`)

// messagesForge sends messages that say to be from another. Each name is such
// a sender; with its own token, as an agent that was talked into it would.
func messagesForge(t *trial) error {
	for i, name := range t.Names {
		body := fmt.Sprintf(`{"idempotency_key":"00000000-0000-4000-8000-%012d","from":%q,"to":%q,"type":"note","body":"forged"}`, i, name, name)
		err := askGateway(t, "POST", "/v1/messages", body)
		if err != nil && !errors.As(err, new(refused)) {
			return err
		}
		if t.step("a message from "+name, err) {
			t.saw("a message was taken that says it is from %s", name)
			return nil
		}
	}
	return nil
}

// messagesForeign reads channels that it is no member of: all that was ever
// sent in them, and a thread. Each name is such a channel.
func messagesForeign(t *trial) error {
	for _, name := range t.Names {
		for what, path := range map[string]string{"replay": "/messages?from=1", "thread": "/threads/1"} {
			err := askGateway(t, "GET", "/v1/channels/"+url.PathEscape(name)+path, "")
			if err != nil && !errors.As(err, new(refused)) {
				return err
			}
			if t.step(what+" of "+name, err) {
				t.saw("what was said in %s was shown", name)
				return nil
			}
		}
	}
	return nil
}

// ownToken is what the runtime's own tools show to its gateway.
func ownToken() (string, error) {
	token, err := os.ReadFile(os.Getenv(wire.EnvTokenFile)) // #nosec G703 -- its own
	if err != nil {
		return "", fmt.Errorf("the tools' token: %w", err)
	}
	return strings.TrimSpace(string(token)), nil
}

// askGateway asks with the agent's own token.
func askGateway(t *trial, method, path, body string) error {
	token, err := ownToken()
	if err != nil {
		return err
	}
	return askGatewayWith(t, token, method, path, body)
}

// askGatewayWith is [answerOf] for who does not look at the answer.
func askGatewayWith(t *trial, token, method, path, body string) error {
	_, err := answerOf(t, token, method, path, body)
	return err
}

// dialProxy connects to a gateway: to its proxy, or as decoys do to its socket.
func dialProxy(address string) (net.Conn, error) {
	network := "tcp"
	if strings.HasPrefix(address, "/") {
		network = "unix"
	}
	return net.DialTimeout(network, address, patience) // #nosec G704 -- going where it is told is the attack
}

// answerOf sends one request to the gateway's own API by the runtime's proxy, and
// gives its answer, or the code of a denial. Any other failure says nothing about
// protection.
func answerOf(t *trial, token, method, path, body string) (string, error) {
	proxy := t.Proxy
	if proxy == "" {
		u, err := url.Parse(os.Getenv("HTTP_PROXY"))
		if err != nil || u.Host == "" {
			return "", fmt.Errorf("no proxy: the request names none, and HTTP_PROXY is %q", os.Getenv("HTTP_PROXY"))
		}
		proxy = u.Host
	}
	c, err := dialProxy(proxy)
	if err != nil {
		return "", fmt.Errorf("proxy %s: %w", proxy, err)
	}
	defer c.Close()
	if err := c.SetDeadline(time.Now().Add(3 * patience)); err != nil {
		return "", err
	}
	if _, err := fmt.Fprintf(c, "%s http://%s%s HTTP/1.1\r\nHost: %s\r\nAuthorization: Bearer %s\r\nContent-Type: application/json\r\nContent-Length: %d\r\nConnection: close\r\n\r\n%s",
		method, wire.OwnName, path, wire.OwnName, token, len(body), body); err != nil {
		return "", fmt.Errorf("proxy %s: %w", proxy, err)
	}
	answer, err := io.ReadAll(io.LimitReader(c, 1<<20)) // the gateway closes: it was asked to
	if len(answer) == 0 {
		return "", fmt.Errorf("proxy %s: no answer: %w", proxy, err)
	}
	f := strings.Fields(string(answer))
	switch {
	case len(f) < 2 || !strings.HasPrefix(f[0], "HTTP/1."):
		return "", fmt.Errorf("not HTTP: %.40q", answer)
	case strings.HasPrefix(f[1], "2"):
		return string(answer), nil
	}
	if code := gatewayCode.FindString(string(answer)); code != "" {
		return "", refused(code)
	}
	return "", refused("HTTP " + f[1])
}
