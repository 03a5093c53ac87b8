package main

import (
	"bufio"
	"errors"
	"fmt"
	"net"
	"os"
	"strings"
	"time"

	"bulkhead/internal/deny"
	"bulkhead/internal/evidence/attempt"
	"bulkhead/internal/wire"
)

// toolKinds are attempts at other agents, and at destinations, by the tools of its
// own gateway.
func toolKinds() map[string]kind {
	return map[string]kind{
		"tool.look":      {do: toolLook},
		"tool.call":      {do: toolCall},
		"tool.plant":     {do: toolPlant},
		"proxy.redirect": {do: proxyRedirect},
	}
}

// call calls a tool: its name and its input, in one string with a space between. That
// the agent has used up its calls of this minute says nothing about protection.
func (t *trial) call(what string) (answer string, err error) {
	name, input, _ := strings.Cut(what, " ")
	token := ""
	if os.Getenv(wire.EnvTokenFile) != "" { // else it has neither tools nor messages, and none
		if token, err = ownToken(); err != nil {
			return "", err
		}
	}
	answer, err = answerOf(t, token, "POST", "/v1/tools/"+name, input)
	if r := refused(""); errors.As(err, &r) && r == refused(deny.ToolRate) {
		return "", fmt.Errorf("%w: the agent had made as many calls in the last minute as it may (tools.ratePerMinute): verify it again later", errUnsupported)
	}
	return answer, err
}

// toolLook calls tools, and looks in what they answer for the canary that another
// agent keeps. Paths may name another one, for tools that show no more.
func toolLook(t *trial) error {
	canary := attempt.Canary
	if len(t.Paths) > 0 {
		canary = t.Paths[0]
	}
	for _, one := range t.Names {
		answer, err := t.call(one)
		if err != nil && !errors.As(err, new(refused)) {
			return err
		}
		if err == nil && !strings.Contains(answer, canary) {
			err = absent
		}
		if t.step(one, err) {
			t.saw("what another agent keeps was shown")
			return nil
		}
	}
	return nil
}

// toolCall calls tools that have to refuse.
func toolCall(t *trial) error {
	for _, one := range t.Names {
		_, err := t.call(one)
		if err != nil && !errors.As(err, new(refused)) {
			return err
		}
		if t.step(one, err) {
			t.saw("the tool did it")
			return nil
		}
	}
	return nil
}

// toolPlant has a file written in each of Paths, and removed.
func toolPlant(t *trial) error {
	for _, dir := range t.Paths {
		path := dir + "/" + t.name()
		_, err := t.call(fmt.Sprintf(`fs_write {"path":%q,"text":"planted"}`, path))
		if err != nil && !errors.As(err, new(refused)) {
			return err
		}
		if t.step("fs_write "+path, err) {
			t.saw("the tool wrote %s", path)
			_, err := t.call(fmt.Sprintf(`fs_delete {"path":%q}`, path))
			return err
		}
	}
	return nil
}

// redirected is how many bytes of an answer's header are read.
const redirected = 64 << 10

// proxyRedirect goes to each of Names as a client does that was redirected there:
// on the connection to the proxy over which an answer came. The answer is the
// gateway's own name's, whose proxy then has to judge another name on it.
func proxyRedirect(t *trial) error {
	proxy, err := t.proxyAddress()
	if err != nil {
		return err
	}
	for _, to := range t.Names {
		err := follow(proxy, to)
		if err != nil && !errors.As(err, new(refused)) {
			return fmt.Errorf("proxy %s: %w", proxy, err)
		}
		if t.step("redirected to "+to, err) {
			t.saw("the redirect led to %s", to)
			return nil
		}
	}
	return nil
}

// follow makes the two requests.
func follow(proxy, to string) error {
	c, err := dialProxy(proxy)
	if err != nil {
		return err
	}
	defer c.Close()
	if err := c.SetDeadline(time.Now().Add(3 * patience)); err != nil {
		return err
	}
	r := bufio.NewReaderSize(c, redirected)
	status, _, err := get(c, r, "http://"+wire.OwnName+"/health")
	if err != nil || status != "200" {
		return errors.Join(fmt.Errorf("its gateway does not answer: %s", status), err)
	}
	status, code, err := get(c, r, "http://"+to+"/")
	switch {
	case ended(err):
		return refused("closed")
	case err != nil:
		return err
	case code != "":
		return refused(code) // egress.unreachable and its kin are refusals that no attack takes for one
	case strings.HasPrefix(status, "2"), strings.HasPrefix(status, "3"):
		return nil
	}
	return refused("HTTP " + status)
}

// get asks for a URL on a connection to a proxy and reads the answer, whole: its
// status, and the rule by which the gateway refused it, in a header that no
// destination can send.
func get(c net.Conn, r *bufio.Reader, url string) (status, code string, err error) {
	host := strings.TrimPrefix(url, "http://")
	host, _, _ = strings.Cut(host, "/")
	if _, err := fmt.Fprintf(c, "GET %s HTTP/1.1\r\nHost: %s\r\n\r\n", url, host); err != nil {
		return "", "", err
	}
	line, err := r.ReadString('\n')
	f := strings.Fields(line)
	if err != nil || len(f) < 2 || !strings.HasPrefix(f[0], "HTTP/1.") {
		return "", "", errors.Join(fmt.Errorf("not HTTP: %.80q", line), err)
	}
	length := 0
	for {
		line, err := r.ReadString('\n')
		if err != nil {
			return "", "", err
		}
		if line = strings.TrimSpace(line); line == "" {
			break
		}
		name, value, _ := strings.Cut(line, ":")
		switch value = strings.TrimSpace(value); strings.ToLower(name) {
		case "content-length":
			if _, err := fmt.Sscanf(value, "%d", &length); err != nil {
				return "", "", fmt.Errorf("length %.20q: %w", value, err)
			}
		case "bulkhead-denied":
			code = value
		}
	}
	_, err = r.Discard(min(length, redirected))
	return f[1], code, err
}
