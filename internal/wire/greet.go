package wire

import (
	"encoding/json"
	"fmt"
	"time"
)

// VerbHello is the verb of the frame that carries a [Hello].
const VerbHello = "hello"

// greetTimeout bounds how long a peer may keep a connection without a Hello.
const greetTimeout = 5 * time.Second

// Greet sends our Hello and reads the peer's, in this order on both sides. A
// peer with another protocol or version is an error; the caller closes.
func (c *Conn) Greet(protocol string, version int) (Hello, error) {
	return c.GreetAs(Hello{Protocol: protocol, Version: version})
}

// GreetAs is Greet by a program that also says which build it is.
func (c *Conn) GreetAs(own Hello) (Hello, error) {
	if err := c.c.SetDeadline(time.Now().Add(greetTimeout)); err != nil {
		return Hello{}, fmt.Errorf("wire: greet: %w", err)
	}
	if err := c.Send(0, VerbHello, own); err != nil {
		return Hello{}, err
	}
	m, files, err := c.Recv()
	closeAll(files)
	if err != nil {
		return Hello{}, err
	}
	var h Hello
	if err := json.Unmarshal(m.Body, &h); m.Verb != VerbHello || err != nil {
		return Hello{}, fmt.Errorf("%w: the peer did not begin with hello", ErrFrame)
	}
	if h.Protocol != own.Protocol || h.Version != own.Version {
		return h, fmt.Errorf("wire: the peer speaks %s %d, we speak %s %d", h.Protocol, h.Version, own.Protocol, own.Version)
	}
	if err := c.c.SetDeadline(time.Time{}); err != nil {
		return h, fmt.Errorf("wire: greet: %w", err)
	}
	return h, nil
}
