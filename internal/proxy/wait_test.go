package proxy

import (
	"errors"
	"testing"
	"time"
)

// wait waits for what ends in a given way. Time counts only so that a fault ends.
func wait(t testing.TB, ended <-chan error, want error) {
	t.Helper()
	select {
	case err := <-ended:
		if !errors.Is(err, want) {
			t.Errorf("it ended with %v, want %v", err, want)
		}
	case <-time.After(20 * time.Second):
		t.Fatal("it does not end")
	}
}
