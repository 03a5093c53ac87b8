package cell

import (
	"errors"
	"os"
	"path/filepath"
	"testing"
	"unsafe"

	"golang.org/x/sys/unix"
)

// A descriptor that is open for writing, for however short a time, is copied into
// what another thread forks at that moment, and keeps the root from being made
// read-only.
func TestPointsAreMadeWithoutOpeningThem(t *testing.T) {
	dir := t.TempDir()
	watch, err := unix.InotifyInit1(unix.IN_CLOEXEC | unix.IN_NONBLOCK)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = unix.Close(watch) }()
	if _, err := unix.InotifyAddWatch(watch, dir, unix.IN_OPEN|unix.IN_CREATE|unix.IN_CLOSE_WRITE); err != nil {
		t.Fatal(err)
	}
	points := []Point{{Path: "/file", File: true}, {Path: "/file", File: true}, {Path: "/folder"}, {Path: "/link", Link: "file"}}
	if err := MakePoints(dir, points); err != nil {
		t.Fatal(err)
	}
	buf := make([]byte, 4096)
	n, err := unix.Read(watch, buf)
	if err != nil {
		t.Fatal(err)
	}
	made := 0
	for at := 0; at < n; {
		e := (*unix.InotifyEvent)(unsafe.Pointer(&buf[at])) // #nosec G103 -- the call's own form
		if e.Mask&unix.IN_CREATE != 0 {
			made++
		} else if e.Mask&unix.IN_ISDIR == 0 {
			t.Errorf("a point was opened: event %#x", e.Mask)
		}
		at += unix.SizeofInotifyEvent + int(e.Len)
	}
	if made != 3 {
		t.Errorf("%d points were made, want 3", made)
	}
	if st, err := os.Lstat(filepath.Join(dir, "file")); err != nil || !st.Mode().IsRegular() || st.Size() != 0 {
		t.Errorf("the file is %v, %v", st, err)
	}
	if err := MakePoints(filepath.Join(dir, "file"), points); !errors.Is(err, unix.ENOTDIR) {
		t.Errorf("points below a file: %v", err)
	}
}
