package warden

import (
	"testing"
	"time"
)

func TestOneAgentCannotFillTheWardensLog(t *testing.T) {
	var d denials
	now := time.Unix(1000, 0)
	written := 0
	for range 100_000 {
		if ok, _ := d.next("bh-a", now); ok {
			written++
		}
	}
	if written != maxDenials {
		t.Errorf("%d lines in one window, want %d", written, maxDenials)
	}
	if ok, left := d.next("bh-b", now); !ok || left != 0 {
		t.Errorf("another agent's first denial: %t, %d left out", ok, left)
	}
	if ok, left := d.next("bh-a", now.Add(denialWindow)); !ok || left != 100_000-maxDenials {
		t.Errorf("in the next window: %t, %d left out", ok, left)
	}
}
