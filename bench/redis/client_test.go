package redis_test

import (
	"bufio"
	"bytes"
	"context"
	"fmt"
	"io"
	"net"
	"net/http"
	"runtime"
	"strconv"
	"sync"
	"syscall"
	"testing"

	"golang.org/x/sys/unix"

	"bulkhead/internal/layout"
	"bulkhead/internal/tooltoken"
)

// caller speaks HTTP by itself over one connection, and MCP's sessions over it:
// a general client takes more processor time for a call than what is measured.
type caller struct {
	c       net.Conn
	in      *bufio.Reader
	out     []byte
	body    []byte
	session string // of MCP
	id      int
}

// connect gives a connection as the runtime's id makes it.
func connect(t *testing.T, socket string) *caller {
	t.Helper()
	var c net.Conn
	var err error
	var work sync.WaitGroup
	work.Go(func() {
		runtime.LockOSThread() // the thread ends with its id
		if _, _, errno := syscall.RawSyscall(unix.SYS_SETRESUID, ^uintptr(0), layout.RuntimeID, ^uintptr(0)); errno != 0 {
			err = errno
			return
		}
		c, err = net.Dial("unix", socket)
	})
	work.Wait()
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = c.Close() })
	return &caller{c: c, in: bufio.NewReaderSize(c, 64<<10)}
}

var authorization = "Authorization: Bearer " + tooltoken.Of(token) + "\r\n"

// post sends a body and gives the status and the body of the answer, which is
// good until the next call.
func (c *caller) post(path, fields string, body []byte) (status int, answer []byte, session string, err error) {
	c.out = fmt.Appendf(c.out[:0], "POST %s HTTP/1.1\r\nHost: gateway\r\n%sContent-Type: application/json\r\n%sContent-Length: %d\r\n\r\n", path, authorization, fields, len(body))
	if _, err := c.c.Write(append(c.out, body...)); err != nil {
		return 0, nil, "", err
	}
	line, err := c.in.ReadSlice('\n')
	if err != nil {
		return 0, nil, "", err
	}
	if status, err = strconv.Atoi(string(line[9:12])); err != nil {
		return 0, nil, "", err
	}
	length := 0
	for {
		if line, err = c.in.ReadSlice('\n'); err != nil {
			return 0, nil, "", err
		}
		name, value, _ := bytes.Cut(bytes.TrimSpace(line), []byte(": "))
		switch string(name) {
		case "":
			c.body = append(c.body[:0], make([]byte, length)...)
			_, err = io.ReadFull(c.in, c.body)
			return status, c.body, session, err
		case "Content-Length":
			length, _ = strconv.Atoi(string(value))
		case "Mcp-Session-Id":
			session = string(value)
		case "Transfer-Encoding":
			return 0, nil, "", fmt.Errorf("chunks are not read here")
		}
	}
}

// rest calls a tool by REST.
func (c *caller) rest(name string, input []byte) error {
	status, answer, _, err := c.post("/v1/tools/"+name, "", input)
	if err == nil && status != http.StatusOK {
		err = fmt.Errorf("%d %s", status, answer)
	}
	return err
}

const (
	mcpVersion = "2025-06-18"
	mcpFields  = "Accept: application/json, text/event-stream\r\nMcp-Protocol-Version: " + mcpVersion + "\r\n"
)

// open begins an MCP session.
func (c *caller) open() error {
	status, answer, session, err := c.post("/mcp", "Accept: application/json, text/event-stream\r\n", []byte(
		`{"jsonrpc":"2.0","id":0,"method":"initialize","params":{"protocolVersion":"`+mcpVersion+`","capabilities":{},"clientInfo":{"name":"bench","version":"1"}}}`,
	))
	if err != nil || status != http.StatusOK || session == "" {
		return fmt.Errorf("initialize: %d %s %w", status, answer, err)
	}
	c.session = mcpFields + "Mcp-Session-Id: " + session + "\r\n"
	status, answer, _, err = c.post("/mcp", c.session, []byte(`{"jsonrpc":"2.0","method":"notifications/initialized"}`))
	if err != nil || status != http.StatusAccepted {
		return fmt.Errorf("initialized: %d %s %w", status, answer, err)
	}
	return nil
}

// mcp calls a tool in the session.
func (c *caller) mcp(name string, input []byte) error {
	c.id++
	status, answer, _, err := c.post("/mcp", c.session, fmt.Appendf(nil, `{"jsonrpc":"2.0","id":%d,"method":"tools/call","params":{"name":"%s","arguments":%s}}`, c.id, name, input))
	if err == nil && (status != http.StatusOK || !bytes.Contains(answer, []byte(`"structuredContent"`)) || bytes.Contains(answer, []byte(`"isError"`))) {
		err = fmt.Errorf("%d %s", status, answer)
	}
	return err
}

type door struct{ tr *http.Transport }

// RoundTrip shows the token.
func (d door) RoundTrip(r *http.Request) (*http.Response, error) {
	r.Header.Set("Authorization", authorization[len("Authorization: "):len(authorization)-2])
	return d.tr.RoundTrip(r)
}

// sdkClient is net/http's client over one connection of the runtime's.
func sdkClient(t *testing.T, socket string) *http.Client {
	t.Helper()
	tr := &http.Transport{DialContext: func(context.Context, string, string) (net.Conn, error) { return connect(t, socket).c, nil }}
	t.Cleanup(tr.CloseIdleConnections)
	return &http.Client{Transport: door{tr}}
}
