package main

import (
	"errors"
	"os"
	"path/filepath"
	"testing"

	"golang.org/x/sys/unix"
)

func TestTheFirstFileIsNoneThatAnotherAttemptLeft(t *testing.T) {
	dir := t.TempDir()
	note, aside := filepath.Join(dir, "note.md"), filepath.Join(dir, mark+"AAAAAAAA")
	if err := os.WriteFile(aside, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	if got := firstFile(dir); got != "" {
		t.Errorf("firstFile: %s, want none", got)
	}
	if err := os.WriteFile(note, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	calls := 0
	got, err := onFirstFile(dir, func(path string) error {
		calls++
		if calls < 3 { // another decoy has moved it aside, and puts it back
			return unix.ENOENT
		}
		return unix.Rename(path, path)
	})
	if got != note || err != nil || calls != 3 {
		t.Errorf("%s, %v after %d calls, want %s after 3", got, err, calls, note)
	}
	if got, err := onFirstFile(dir, func(string) error { return unix.EROFS }); got != note || !errors.Is(err, unix.EROFS) {
		t.Errorf("%s, %v, want %s, EROFS", got, err, note)
	}
}
