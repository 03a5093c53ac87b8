package main

import (
	"bytes"
	"strings"
	"testing"

	"bulkhead/internal/control/protocol"
)

func TestTheListOfTokensShowsTheirBounds(t *testing.T) {
	var out bytes.Buffer
	all := tokenTable([]protocol.Token{{ID: "A", Rate: 5, Memory: 1 << 20, Storage: 2 << 20}, {ID: "B"}})
	all.write(&out, false)
	lines := strings.Split(out.String(), "\n")
	if len(lines) < 3 || !strings.Contains(lines[1], "1048576") || !strings.Contains(lines[1], "2097152") || strings.Count(lines[2], "manifest") != 4 {
		t.Errorf("%s", out.String())
	}
}
