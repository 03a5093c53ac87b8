package thread

import (
	"os"
	"runtime"
	"strconv"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

func TestMain(m *testing.M) {
	// Lets the tests' goroutines have the main thread as well.
	runtime.UnlockOSThread()
	os.Exit(m.Run())
}

func TestTheThreadIsNotTheMainOneAndEnds(t *testing.T) {
	for range 200 {
		var id int
		Run(func() { id = unix.Gettid() })
		if id == os.Getpid() {
			t.Fatal("it was the main thread")
		}
		for end := time.Now().Add(20 * time.Second); ; time.Sleep(time.Millisecond) {
			if _, err := os.Stat("/proc/self/task/" + strconv.Itoa(id)); err != nil {
				break
			}
			if time.Now().After(end) {
				t.Fatalf("thread %d is still there", id)
			}
		}
	}
}
