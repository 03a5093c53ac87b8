package warden

import (
	"crypto/sha256"
	"debug/elf"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"

	"golang.org/x/sys/unix"

	"bulkhead/internal/host/tree"
	"bulkhead/internal/layout"
)

// The programs that run inside or beside agents, by file name.
const (
	shimProgram  = "bulkhead-shim"
	serveProgram = "bulkhead-serve"
	netProgram   = "bulkhead-net"
	probeProgram = "bulkhead-probe"
)

// agentCommand is the name of the shim for what an agent calls, on its PATH.
const agentCommand = "bulkhead"

func agentPrograms() []string {
	return []string{shimProgram, serveProgram, netProgram, probeProgram}
}

// programsDir is where containers find our programs.
const programsDir = "/.bulkhead"

// installPrograms copies the agents' programs from the folder of the warden's
// own executable into a root-owned folder named after their digest, and
// returns that digest. Agents must not run from a folder that a user or a
// build may still write to, and all of them must run the same inode so that
// their text is shared. A running agent keeps the build it was started with.
func installPrograms(h layout.Host, from string, known *digests) (build string, err error) {
	if build, err = known.of(from); err != nil {
		return "", err
	}
	dir := h.Programs(build)
	if err := tree.MkdirAll(filepath.Dir(dir)); err != nil {
		return "", err
	}
	if err := tree.MakeAll(tree.Entry{Path: dir, Mode: 0o755}); err != nil {
		return "", err
	}
	for _, name := range agentPrograms() {
		if err := installProgram(filepath.Join(from, name), filepath.Join(dir, name)); err != nil {
			return "", err
		}
	}
	// What an agent calls has a short name besides.
	if err := os.Symlink(shimProgram, filepath.Join(dir, agentCommand)); err != nil && !errors.Is(err, os.ErrExist) {
		return "", fmt.Errorf("warden: %w", err)
	}
	return build, nil
}

// digests remembers what the programs of a folder were, as long as the kernel
// says that nobody touched them: reading 25 MB costs more than starting an
// agent. The zero value is ready; the caller holds Warden.change.
type digests struct {
	state []fileState
	build string
}

// fileState is what changes with every change of a file. Its own times nobody
// can set back: ctime is the kernel's (inode(7)).
type fileState struct {
	dev, ino     uint64
	size         int64
	mtime, ctime unix.Timespec
}

// of gives the digest of the programs in a folder.
func (d *digests) of(from string) (string, error) {
	sum := sha256.New()
	var files []*os.File
	defer func() {
		for _, f := range files {
			_ = f.Close()
		}
	}()
	var now []fileState
	for _, name := range agentPrograms() {
		f, err := os.Open(filepath.Join(from, name)) // #nosec G304 -- beside our own executable
		if err != nil {
			return "", fmt.Errorf("warden: the program %s is missing beside bulkhead-warden: %w (install all programs in one folder)", name, err)
		}
		files = append(files, f)
		var st unix.Stat_t
		if err := unix.Fstat(int(f.Fd()), &st); err != nil { // #nosec G115 -- a descriptor
			return "", fmt.Errorf("warden: read %s: %w", name, err)
		}
		now = append(now, fileState{st.Dev, st.Ino, st.Size, st.Mtim, st.Ctim})
	}
	if d.build != "" && slices.Equal(d.state, now) {
		return d.build, nil
	}
	for i, name := range agentPrograms() {
		err := static(files[i])
		if err == nil {
			_, err = io.Copy(sum, files[i])
		}
		if err != nil {
			return "", fmt.Errorf("warden: read %s: %w", name, err)
		}
		fmt.Fprintf(sum, "\x00%s\x00", name)
	}
	d.state, d.build = now, hex.EncodeToString(sum.Sum(nil)[:8])
	return d.build, nil
}

// static refuses a program that needs a loader or libraries: containers of our
// own hold nothing but the program.
func static(f *os.File) error {
	e, err := elf.NewFile(f)
	if err != nil {
		return err
	}
	for _, p := range e.Progs {
		if p.Type == elf.PT_INTERP {
			return errors.New("it is linked dynamically: build with CGO_ENABLED=0, as `make` does")
		}
	}
	return nil
}

func installProgram(from, to string) error {
	src, err := os.Open(from) // #nosec G304 -- beside our own executable
	if err != nil {
		return fmt.Errorf("warden: %w", err)
	}
	defer func() { _ = src.Close() }()
	want, err := src.Stat()
	if err != nil {
		return fmt.Errorf("warden: %w", err)
	}
	// The folder's name is the digest of the content: a file of the right size
	// was completed by a rename and is never written again.
	if have, err := os.Lstat(to); err == nil && have.Mode().IsRegular() && have.Size() == want.Size() {
		return nil
	}
	tmp := to + ".new"
	if err := unix.Unlink(tmp); err != nil && !errors.Is(err, unix.ENOENT) {
		return fmt.Errorf("warden: clear %s: %w", tmp, err)
	}
	dst, err := os.OpenFile(tmp, os.O_WRONLY|os.O_CREATE|os.O_EXCL|unix.O_NOFOLLOW, 0o755) // #nosec G302 G304 -- a program, in a root-owned folder
	if err != nil {
		return fmt.Errorf("warden: install %s: %w", to, err)
	}
	_, err = io.Copy(dst, src)
	if err == nil {
		err = dst.Chmod(0o755)
	}
	if err == nil {
		err = dst.Sync()
	}
	if err = errors.Join(err, dst.Close()); err == nil {
		err = os.Rename(tmp, to)
	}
	if err != nil {
		return fmt.Errorf("warden: install %s: %w", to, err)
	}
	return nil
}
