package main

import (
	"fmt"
	"net"
	"slices"
	"strconv"
	"strings"

	"bulkhead/internal/team"
)

// What is wrong whatever runs is told before the warden is asked: without one,
// "it is not running" would hide the mistake. The warden checks all of it again.

// port reads a TCP port.
func port(text string) (uint16, error) {
	n, err := strconv.ParseUint(text, 10, 16)
	if err != nil || n == 0 {
		return 0, badInput(fmt.Sprintf("%.40q is not a port", text), "write a number from 1 to 65535")
	}
	return uint16(n), nil
}

// oneOf wants one of two or more words, or nothing.
func oneOf(flag, value string, words ...string) error {
	if value == "" || slices.Contains(words, value) {
		return nil
	}
	return badInput(fmt.Sprintf("--%s cannot be %.40q", flag, value), "write "+strings.Join(words[:len(words)-1], ", ")+" or "+words[len(words)-1])
}

// destination wants one host:port, as in the manifest.
func destination(text string) error {
	if _, err := team.ParseDestination(text); err != nil {
		return badInput(err.Error(), "name one host:port, as in the manifest")
	}
	return nil
}

// question checks what [bulkhead why] is asked, when it is a host:port.
func question(what string) error {
	word, _, _ := strings.Cut(what, ":")
	if strings.HasPrefix(what, "/") || slices.Contains([]string{"message", "topic", "tool", "secret", "limit"}, word) {
		return nil
	}
	if _, p, err := net.SplitHostPort(what); err == nil {
		_, err := port(p)
		return err
	}
	return nil
}

// checkTeam wants --team to be a name that a team can have.
func (a *app) checkTeam() error {
	if a.team != "" && !team.IsName(a.team) {
		return badInput(fmt.Sprintf("%.40q cannot be a team's name", a.team), "use 1 to 31 of a-z, 0-9, _ and -, beginning with a letter")
	}
	return nil
}
