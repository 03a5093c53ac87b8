package main

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"time"

	"golang.org/x/sys/unix"
)

// keptKinds are attempts at what is kept of agents: their records, stores,
// tokens, and what they are given to read.
func keptKinds() map[string]kind {
	return map[string]kind{
		"file.change":     {do: changeFiles},
		"process.file":    {do: fileOfProcess},
		"knowledge.write": {do: writeGiven},
		"knowledge.swap":  {do: swapGiven},
	}
}

// changeFiles opens each file to add to it, and cuts it to the length that it
// has: a file that anybody may change is left as it is.
func changeFiles(t *trial) error {
	for _, p := range t.Paths {
		fd, err := unix.Open(p, unix.O_WRONLY|unix.O_APPEND|unix.O_CLOEXEC|unix.O_NOFOLLOW, 0)
		if t.step("open "+p+" to add to it", err) {
			t.saw("%s can be added to", p)
			return unix.Close(fd)
		}
		if t.step("cut "+p+" to its length", cutToLength(p)) {
			t.saw("%s can be cut", p)
			return nil
		}
	}
	return nil
}

func cutToLength(path string) error {
	var st unix.Stat_t
	if err := unix.Lstat(path, &st); err != nil {
		return err
	}
	if st.Mode&unix.S_IFMT != unix.S_IFREG {
		return fmt.Errorf("%s is no file", path)
	}
	return unix.Truncate(path, st.Size)
}

// fileOfProcess reads files by the root of each target's process.
func fileOfProcess(t *trial) error {
	if len(t.Paths) == 0 {
		return errors.New("the request names no file")
	}
	return t.eachTarget("open "+t.Paths[0]+" by the root of ", func(pid int) error {
		return openClose(filepath.Join(fmt.Sprintf("/proc/%d/root", pid), t.Paths[0]))
	})
}

// writeGiven makes a file in each folder, and opens each file for writing; it
// writes nothing, and removes what it made.
func writeGiven(t *trial) error {
	for _, p := range t.Paths {
		info, err := os.Lstat(p)
		if err != nil {
			return fmt.Errorf("what it is given to read: %w", err)
		}
		if !info.IsDir() {
			if t.step("open "+p+" for writing", openAndClose(p)) {
				t.saw("%s can be written", p)
				return nil
			}
			continue
		}
		made := filepath.Join(p, t.name())
		fd, err := unix.Open(made, unix.O_CREAT|unix.O_EXCL|unix.O_WRONLY|unix.O_CLOEXEC, 0o600)
		if t.step("create a file in "+p, err) {
			t.saw("made %s", made)
			return errors.Join(unix.Close(fd), unix.Unlink(made))
		}
		first, err := onFirstFile(p, openAndClose)
		if first != "" && t.step("open "+first+" for writing", err) {
			t.saw("%s can be written", first)
			return nil
		}
	}
	return nil
}

// swapGiven moves each place, and the first file in it, away and back: whoever
// can do that can put something else there.
func swapGiven(t *trial) error {
	for _, p := range t.Paths {
		if _, err := os.Lstat(p); err != nil {
			return fmt.Errorf("what it is given to read: %w", err)
		}
		moved := func(what string) error { return unix.Rename(what, filepath.Join(filepath.Dir(what), t.name())) }
		what, err := p, moved(p)
		if !t.step("move "+p, err) {
			if what, err = onFirstFile(p, moved); what == "" || !t.step("move "+what, err) {
				continue
			}
		}
		t.saw("%s can be put in another's place", what)
		return unix.Rename(filepath.Join(filepath.Dir(what), t.name()), what)
	}
	return nil
}

// onFirstFile does something to a plain file in a folder, and says which it was;
// empty: none is to be seen. A file that is gone when its turn comes was moved aside
// by the same attempt of another decoy, which puts it back.
func onFirstFile(dir string, do func(path string) error) (string, error) {
	for try := 0; ; try++ {
		first := firstFile(dir)
		if first == "" {
			return "", nil
		}
		if err := do(first); !errors.Is(err, unix.ENOENT) || try == 100 {
			return first, err
		}
		time.Sleep(time.Millisecond)
	}
}

// firstFile is a plain file in a folder, and none that an attempt left there for a
// moment.
func firstFile(dir string) string {
	list, err := os.ReadDir(dir)
	if err != nil {
		return ""
	}
	for _, e := range list {
		if e.Type().IsRegular() && !strings.HasPrefix(e.Name(), mark) {
			return filepath.Join(dir, e.Name())
		}
	}
	return ""
}
