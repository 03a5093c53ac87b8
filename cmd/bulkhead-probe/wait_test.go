package main

import (
	"os"
	"strconv"
	"strings"
	"testing"
	"time"
)

func itoa(n int) string { return strconv.Itoa(n) }

// waitUntilReading returns once some thread of the process waits for its pipe:
// by then it has done what it does before it reads.
func waitUntilReading(t *testing.T, pid int) {
	t.Helper()
	for t.Context().Err() == nil {
		tasks, err := os.ReadDir("/proc/" + itoa(pid) + "/task")
		if err != nil {
			t.Fatal(err)
		}
		for _, task := range tasks {
			w, err := os.ReadFile("/proc/" + itoa(pid) + "/task/" + task.Name() + "/wchan")
			if err == nil && strings.Contains(string(w), "pipe") {
				return
			}
		}
		time.Sleep(time.Millisecond)
	}
}
