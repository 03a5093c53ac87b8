package toolcmd

import (
	"bufio"
	"errors"
	"fmt"
	"io"
	"net"
	"net/textproto"
	"os"
	"strings"

	"bulkhead/internal/shim/ask"
	"bulkhead/internal/wire"
)

// maxHead bounds what comes before the upgraded connection.
const maxHead = 64 << 10

// MCP is `bulkhead-shim mcp`: what comes on standard input goes to the gateway,
// what it answers to standard output. It returns the exit code.
func MCP() int {
	if err := relay(os.Stdin, os.Stdout); err != nil {
		fmt.Fprintln(os.Stderr, "error:", err)
		return wire.ExitFailed
	}
	return wire.ExitOK
}

// relay asks the gateway for an MCP session of the stdio form, and carries bytes
// until either side ends.
func relay(in io.Reader, out io.Writer) error {
	g, err := ask.FromEnvironment()
	if err != nil {
		return err
	}
	c, err := net.DialUnix("unix", nil, &net.UnixAddr{Name: g.Socket, Net: "unix"})
	if err != nil {
		return fmt.Errorf("the agent's gateway: %w", err)
	}
	defer func() { _ = c.Close() }()
	r, err := upgrade(c, g.Token)
	if err != nil {
		return err
	}
	go func() {
		// The process ends when the gateway has said its last; a client that
		// closes its end says that it wants nothing more.
		_, _ = io.Copy(c, in)
		_ = c.CloseWrite()
	}()
	_, err = io.Copy(out, r)
	return err
}

// upgrade gives what is read from c once the gateway has agreed.
func upgrade(c net.Conn, token string) (io.Reader, error) {
	if strings.ContainsAny(token, "\r\n") {
		return nil, errors.New("the token has the end of a line in it")
	}
	_, err := io.WriteString(c, "POST /mcp/stdio HTTP/1.1\r\nHost: "+wire.OwnName+"\r\nAuthorization: Bearer "+token+
		"\r\nConnection: Upgrade\r\nUpgrade: mcp-stdio\r\nContent-Length: 0\r\n\r\n")
	if err != nil {
		return nil, fmt.Errorf("the agent's gateway: %w", err)
	}
	head := &io.LimitedReader{R: c, N: maxHead}
	b := bufio.NewReader(head)
	t := textproto.NewReader(b)
	line, err := t.ReadLine()
	if err != nil {
		return nil, fmt.Errorf("the agent's gateway: %w", err)
	}
	h, err := t.ReadMIMEHeader()
	if err != nil {
		return nil, fmt.Errorf("the agent's gateway: %w", err)
	}
	if !strings.HasPrefix(line, "HTTP/1.1 101 ") {
		return nil, fmt.Errorf("the gateway answered %q to an MCP session (%s): see `bulkhead tool list`", line, h.Get("Bulkhead-Denied"))
	}
	early, err := b.Peek(b.Buffered())
	if err != nil {
		return nil, err
	}
	return io.MultiReader(strings.NewReader(string(early)), c), nil
}
