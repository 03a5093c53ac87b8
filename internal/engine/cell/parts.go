package cell

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"path"
	"runtime"
	"strings"

	"golang.org/x/sys/unix"

	"bulkhead/internal/cgroup"
	"bulkhead/internal/engine"
	"bulkhead/internal/engine/cell/stage2"
)

// What follows are parts of a start for the engine that leaves the rest to an
// OCI runtime (internal/engine/podman), so that mounts, networks, descriptors
// and supervision are the same code under both.

// Point is a mount point that an OCI runtime needs besides those of the Spec.
type Point struct {
	Path string
	File bool
	Link string // a symbolic link with this target instead
}

// make makes the point below dir, which only root can reach.
func (p Point) make(dir string) error {
	full := dir + p.Path
	if err := os.MkdirAll(path.Dir(full), 0o755); err != nil { // #nosec G301 -- parts of a container's root
		return err
	}
	switch {
	case p.Link != "":
		return os.Symlink(p.Link, full)
	case p.File:
		// Not by open(2): a child that is forked meanwhile would have a copy of the
		// descriptor for a moment, and a mount with a writer cannot be made read-only.
		if err := unix.Mknod(full, unix.S_IFREG|0o644, 0); err != nil && !errors.Is(err, unix.EEXIST) {
			return &os.PathError{Op: "mknod", Path: full, Err: err}
		}
		return nil
	}
	return os.MkdirAll(full, 0o755) // #nosec G301 -- as above
}

// MakePoints makes an empty tree that holds only points, for [NewTree].
func MakePoints(dir string, points []Point) error {
	for _, p := range points {
		if err := p.make(dir); err != nil {
			return fmt.Errorf("cell: mount points: %w", err)
		}
	}
	return nil
}

// Tree is the file tree of one container, made of detached mounts with their
// flags set.
type Tree struct{ t *tree }

// NewTree makes the root and the mounts of s; /proc, /dev and /sys are left to
// the OCI runtime. What the root lacks of points is taken from the folder
// skeleton, which [MakePoints] filled: the root is then an overlay of both,
// without an upper layer, and as read-only as before.
func NewTree(s *engine.Spec, skeleton string, points []Point) (_ *Tree, err error) {
	t := &tree{root: -1, dev: -1, proc: -1}
	defer func() {
		if err != nil {
			t.close()
		}
	}()
	mounts, err := t.addMounts(s, s.Mounts)
	if err != nil {
		return nil, err
	}
	if s.Root.Path == "" {
		t.root, err = emptyRoot(append(pointsOf(points), mounts...), true)
		if err == nil {
			err = linkPoints(t.root, points)
		}
		if err == nil {
			err = unix.MountSetattr(t.root, "", unix.AT_EMPTY_PATH, &unix.MountAttr{Attr_set: unix.MOUNT_ATTR_RDONLY})
		}
	} else {
		t.root, err = rootWithPoints(s.Root.Path, skeleton, points)
	}
	if err != nil {
		return nil, err
	}
	return &Tree{t}, nil
}

func pointsOf(points []Point) []placed {
	var out []placed
	for _, p := range points {
		if p.Link == "" {
			out = append(out, placed{fd: -1, target: p.Path, file: p.File})
		}
	}
	return out
}

func linkPoints(root int, points []Point) error {
	for _, p := range points {
		if p.Link == "" {
			continue
		}
		if err := unix.Symlinkat(p.Link, root, strings.TrimPrefix(p.Path, "/")); err != nil {
			return fmt.Errorf("cell: %s: %w", p.Path, err)
		}
	}
	return nil
}

// rootWithPoints binds the root file system as it is when it holds every
// point, and lays it over the skeleton otherwise.
func rootWithPoints(root, skeleton string, points []Point) (int, error) {
	src, err := openSource(root, true)
	if err != nil {
		return -1, err
	}
	defer func() { _ = unix.Close(src) }()
	complete := true
	for _, p := range points {
		fd, err := unix.Openat2(src, strings.TrimPrefix(p.Path, "/"), &unix.OpenHow{
			Flags: unix.O_PATH | unix.O_CLOEXEC | unix.O_NOFOLLOW, Resolve: unix.RESOLVE_BENEATH | unix.RESOLVE_NO_MAGICLINKS,
		})
		if err != nil {
			complete = false
			break
		}
		_ = unix.Close(fd)
	}
	if complete {
		return cloneMount(src, attributes(false, true), false)
	}
	fs, err := unix.Fsopen("overlay", unix.FSOPEN_CLOEXEC)
	if err != nil {
		return -1, fmt.Errorf("cell: root %s lacks mount points of an OCI runtime, and this kernel has no overlayfs to add them: %w", root, err)
	}
	defer func() { _ = unix.Close(fs) }()
	// The root first: where both have a folder, its owner and mode count.
	err = unix.FsconfigSetString(fs, "lowerdir", fmt.Sprintf("/proc/self/fd/%d:%s", src, skeleton))
	if err == nil {
		err = unix.FsconfigCreate(fs)
	}
	if err != nil {
		return -1, fmt.Errorf("cell: root %s lacks mount points of an OCI runtime (%s), and laying an overlay with them failed: %w", root, names(points), err)
	}
	fd, err := unix.Fsmount(fs, unix.FSMOUNT_CLOEXEC, int(attributes(false, true))) // #nosec G115 -- a handful of flags
	if err != nil {
		return -1, fmt.Errorf("cell: root %s: fsmount: %w", root, err)
	}
	return fd, nil
}

func names(points []Point) string {
	out := make([]string, len(points))
	for i, p := range points {
		out[i] = p.Path
	}
	return strings.Join(out, " ")
}

// Place mounts the tree at a folder of the calling thread's mount namespace.
func (t *Tree) Place(at string) error {
	if err := unix.MoveMount(t.t.root, "", unix.AT_FDCWD, at, unix.MOVE_MOUNT_F_EMPTY_PATH); err != nil {
		return fmt.Errorf("cell: place the root: %w", err)
	}
	for _, m := range t.t.mounts {
		if err := placeBelow(t.t.root, m); err != nil {
			return err
		}
	}
	return nil
}

// Close gives up what was not placed.
func (t *Tree) Close() { t.t.close() }

// OwnNamespaces makes the user namespaces that the calling thread, one of
// thread.Run, forks from now on belong to the id that owns those of the Spec's
// agent: see ownerID. The thread keeps its capabilities.
func OwnNamespaces(s *engine.Spec) error {
	return becomeOwner(ownerID(s))
}

// NewNetwork gives the calling thread, one of thread.Run, a network
// namespace of the initial user namespace, and says which one.
func NewNetwork(n engine.Network) (id string, err error) {
	if err := makeNetwork(n); err != nil {
		return "", err
	}
	if id, err = os.Readlink("/proc/thread-self/ns/net"); err != nil {
		return "", fmt.Errorf("cell: network namespace: %w", err)
	}
	return id, nil
}

// ContainerFiles are the descriptors of the container from 0 on: see
// [Options]. The caller closes those in made.
func ContainerFiles(s *engine.Spec, opt *Options) (files, made []*os.File, err error) {
	l := &launch{spec: s, opt: opt}
	files, err = l.containerFiles()
	if err != nil {
		l.close()
		return nil, nil, err
	}
	return files, l.files, nil
}

// Order gives a stage 2 that waits its command and descriptors, and returns
// once the command runs: exec closes the connection.
func Order(conn *net.UnixConn, o stage2.Order, files []*os.File) (Report, error) {
	defer func() { _ = conn.Close() }()
	raw, err := json.Marshal(o)
	if err != nil {
		return Report{}, err
	}
	if err := sendOrder(conn, raw, files); err != nil {
		return Report{}, err
	}
	got, err := io.ReadAll(io.LimitReader(conn, 64<<10))
	if err != nil {
		return Report{}, fmt.Errorf("stage 2's status: %w", err)
	}
	return readReport(bytes.NewReader(got))
}

func sendOrder(conn *net.UnixConn, raw []byte, files []*os.File) error {
	fds := make([]int, len(files))
	for i, f := range files {
		fds[i] = int(f.Fd()) // #nosec G115 -- a descriptor; containers get blocking ones
	}
	n, _, err := conn.WriteMsgUnix(raw, unix.UnixRights(fds...), nil)
	runtime.KeepAlive(files)
	if err == nil && n < len(raw) {
		_, err = conn.Write(raw[n:])
	}
	if err = errors.Join(err, conn.CloseWrite()); err != nil {
		return fmt.Errorf("send the command: %w", err)
	}
	return nil
}

// readReport reads until exec, or the end of stage 2, closes the pipe.
func readReport(r io.Reader) (Report, error) {
	raw, err := io.ReadAll(io.LimitReader(r, 64<<10))
	if err != nil {
		return Report{}, fmt.Errorf("stage 2's status: %w", err)
	}
	lines := bytes.Split(bytes.TrimSpace(raw), []byte("\n"))
	if len(raw) == 0 {
		return Report{}, errors.New("stage 2 ended without a word (killed, or its memory limit is too small to start)")
	}
	var last stage2.Report
	if err := json.Unmarshal(lines[len(lines)-1], &last); err != nil {
		return Report{}, fmt.Errorf("stage 2's status %q: %w", raw, err)
	}
	if last.Error != "" {
		return Report{}, errors.New(last.Error)
	}
	return last.Result, nil
}

// Adopt supervises a process that this process is the parent of, or will be
// once whoever forked it has ended. oomBefore is what the group counted before
// it started.
func Adopt(pid int, group *cgroup.Group, report Report, oomBefore int64) (*Process, error) {
	fd, err := unix.PidfdOpen(pid, 0)
	if err != nil {
		return nil, fmt.Errorf("cell: pidfd of %d: %w", pid, err)
	}
	proc, err := os.FindProcess(pid)
	if err != nil {
		return nil, errors.Join(err, unix.Close(fd))
	}
	l := &launch{group: group, oom: oomBefore}
	return l.watch(proc, fd, report)
}
