package main

import (
	"fmt"
	"net"
	"time"
)

// connectTCP opens a connection to each address, straight.
func connectTCP(t *trial) error {
	for _, a := range t.Addresses {
		c, err := net.DialTimeout("tcp", a, patience)
		if t.step("tcp "+a, err) {
			t.saw("connected to %s", a)
			return c.Close()
		}
	}
	return nil
}

// question is a DNS query for the address of example.com (RFC 1035, 4.1).
var question = []byte("\x62\x68\x01\x00\x00\x01\x00\x00\x00\x00\x00\x00\x07example\x03com\x00\x00\x01\x00\x01")

// dnsUDP asks each resolver. An answer of any kind is a way out: DNS carries
// data in the question.
func dnsUDP(t *trial) error {
	for _, a := range t.Addresses {
		if t.step("dns udp "+a, ask("udp", a, question)) {
			t.saw("%s answered", a)
			return nil
		}
	}
	return nil
}

// dnsTCP does so over TCP, where the connection alone proves it.
func dnsTCP(t *trial) error {
	for _, a := range t.Addresses {
		framed := append([]byte{0, byte(len(question))}, question...) // #nosec G115 -- 29 bytes
		if t.step("dns tcp "+a, ask("tcp", a, framed)) {
			t.saw("%s took the question", a)
			return nil
		}
	}
	return nil
}

func ask(network, address string, message []byte) error {
	c, err := dialOther(network, address)
	if err != nil {
		return err
	}
	defer c.Close()
	if network == "tcp" {
		return nil
	}
	if err := c.SetDeadline(time.Now().Add(patience)); err != nil {
		return fmt.Errorf("deadline: %w", err)
	}
	if _, err := c.Write(message); err != nil {
		return err
	}
	_, err = c.Read(make([]byte, 512))
	return err
}

// dialOther connects to somebody else. The kernel may give a socket the very port
// that it is to connect to, on a loopback of its own: it then would hear itself.
// (For TCP the net package looks after that.)
func dialOther(network, address string) (net.Conn, error) {
	for {
		c, err := net.DialTimeout(network, address, patience)
		if err != nil || network != "udp" || c.LocalAddr().String() != c.RemoteAddr().String() {
			return c, err
		}
		defer c.Close() // after the next has its port
	}
}
