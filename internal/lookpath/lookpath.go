// Package lookpath finds a program as execvp does, in the PATH of a given
// environment instead of the caller's own.
package lookpath

import (
	"errors"
	"fmt"
	"io/fs"
	"strings"

	"golang.org/x/sys/unix"
)

// Candidates lists the paths that name may stand for, in the order to try. A
// relative PATH is left out: it would run what an agent put in the working
// folder.
func Candidates(name string, env []string) ([]string, error) {
	if strings.Contains(name, "/") {
		return []string{name}, nil
	}
	var out []string
	if name != "" {
		for dir := range strings.SplitSeq(pathOf(env), ":") {
			if strings.HasPrefix(dir, "/") {
				out = append(out, dir+"/"+name)
			}
		}
	}
	if len(out) == 0 {
		return nil, NotFound(name, env)
	}
	return out, nil
}

func pathOf(env []string) string {
	path := ""
	for _, e := range env {
		if v, ok := strings.CutPrefix(e, "PATH="); ok {
			path = v
		}
	}
	return path
}

// NotFound says that none of the candidates is there.
func NotFound(name string, env []string) error { return &notFound{name, pathOf(env)} }

type notFound struct{ name, path string }

func (e *notFound) Error() string {
	return fmt.Sprintf("%q is in no folder of PATH=%s: name it absolutely, or set PATH in the environment", e.name, e.path)
}

func (*notFound) Is(target error) bool { return target == fs.ErrNotExist }

// ExitStatus is what a shell exits with when it cannot start a program for that
// reason (POSIX.1-2024, XCU 2.8.2).
func ExitStatus(err error) int {
	if errors.Is(err, fs.ErrNotExist) || errors.Is(err, unix.ENOTDIR) {
		return 127
	}
	return 126
}

// Find gives the first candidate that the caller may execute.
func Find(name string, env []string) (string, error) {
	paths, err := Candidates(name, env)
	if err != nil {
		return "", err
	}
	if strings.Contains(name, "/") {
		return name, nil
	}
	for _, full := range paths {
		if err := unix.Access(full, unix.X_OK); err == nil {
			return full, nil
		} else if !errors.Is(err, unix.ENOENT) && !errors.Is(err, unix.ENOTDIR) && !errors.Is(err, unix.EACCES) {
			return "", fmt.Errorf("look for %s: %w", full, err)
		}
	}
	return "", NotFound(name, env)
}
