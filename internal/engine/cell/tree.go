package cell

import (
	"cmp"
	"errors"
	"fmt"
	"path"
	"slices"
	"strings"

	"golang.org/x/sys/unix"

	"bulkhead/internal/engine"
)

// tree is a container's file tree as detached mounts, made by root.
type tree struct {
	root, dev int
	proc      int // the starter's
	mounts    []placed
}

type placed struct {
	fd     int
	target string
	file   bool
}

// close may be called again.
func (t *tree) close() {
	for _, fd := range []int{t.root, t.dev, t.proc} {
		if fd >= 0 {
			_ = unix.Close(fd)
		}
	}
	for _, m := range t.mounts {
		_ = unix.Close(m.fd)
	}
	*t = tree{root: -1, dev: -1, proc: -1}
}

// shmSize bounds /dev/shm; the cgroup's memory limit counts it as well.
const shmSize = 64 << 20

// makeTree opens and makes every mount of s.
func makeTree(s *engine.Spec) (_ *tree, err error) {
	t := &tree{root: -1, dev: -1, proc: -1}
	defer func() {
		if err != nil {
			t.close()
		}
	}()
	shm := engine.Mount{Kind: engine.MountTmpfs, Target: "/dev/shm", Writable: true, Size: shmSize, Mode: 0o1777}
	if _, err := t.addMounts(s, append(slices.Clone(s.Mounts), shm)); err != nil {
		return nil, err
	}
	if t.dev, err = deviceMount(); err != nil {
		return nil, err
	}
	if t.proc, err = cloneProc(); err != nil {
		return nil, err
	}
	if s.Root.Path == "" {
		t.root, err = emptyRoot(t.mounts, !s.Has(engine.MechReadOnly))
	} else {
		t.root, _, err = bindMount(s.Root.Path, true, attributes(!s.Has(engine.MechReadOnly), true))
	}
	if err != nil {
		return nil, err
	}
	return t, nil
}

// addMounts makes every mount of the list, parents before children.
func (t *tree) addMounts(s *engine.Spec, list []engine.Mount) ([]placed, error) {
	owner := hostID(s)
	mounts := slices.Clone(list)
	// Whatever the order in the Spec.
	slices.SortStableFunc(mounts, func(a, b engine.Mount) int {
		return cmp.Compare(strings.Count(a.Target, "/"), strings.Count(b.Target, "/"))
	})
	for _, m := range mounts {
		p := placed{fd: -1, target: m.Target}
		var err error
		if m.Kind == engine.MountTmpfs {
			p.fd, err = tmpfsFor(m, owner)
		} else {
			p.fd, p.file, err = bindMount(m.Source, false, attributes(m.Writable || !s.Has(engine.MechReadOnly), m.Exec))
		}
		if err != nil {
			return nil, err
		}
		t.mounts = append(t.mounts, p)
	}
	return t.mounts, pointsInMemory(mounts, t.mounts)
}

// pointsInMemory makes the mount points of mounts that lie in a tmpfs of the
// same Spec: nobody else could, and nobody has seen that tmpfs yet.
func pointsInMemory(mounts []engine.Mount, made []placed) error {
	for i, m := range mounts {
		parent := -1
		for j, o := range mounts[:i] {
			if strings.HasPrefix(m.Target, o.Target+"/") {
				parent = j // the deepest comes last
			}
		}
		if parent < 0 || mounts[parent].Kind != engine.MountTmpfs {
			continue
		}
		rel := strings.TrimPrefix(m.Target, mounts[parent].Target)
		if err := makePoint(made[parent].fd, placed{target: rel, file: made[i].file}); err != nil {
			return fmt.Errorf("cell: mount point %s: %w", m.Target, err)
		}
	}
	return nil
}

func cloneProc() (int, error) {
	fd, err := unix.Open("/proc", unix.O_PATH|unix.O_DIRECTORY|unix.O_CLOEXEC, 0)
	if err != nil {
		return -1, fmt.Errorf("cell: open /proc: %w", err)
	}
	defer func() { _ = unix.Close(fd) }()
	tree, err := cloneMount(fd, attributes(true, false), false)
	if err != nil {
		return -1, fmt.Errorf("cell: /proc: %w", err)
	}
	return tree, nil
}

// emptyRoot makes a root that holds only mount points.
func emptyRoot(mounts []placed, writable bool) (int, error) {
	fd, err := MemoryMount(unix.MOUNT_ATTR_NOSUID|unix.MOUNT_ATTR_NODEV, map[string]string{"size": "256k", "mode": "0755"})
	if err != nil {
		return -1, err
	}
	points := append([]placed{{target: "/proc"}, {target: "/dev"}}, mounts...)
	for _, m := range points {
		if strings.HasPrefix(m.target, "/dev/") || inside(m.target, mounts) {
			continue // its mount point lies in another mount
		}
		if err := makePoint(fd, m); err != nil {
			_ = unix.Close(fd)
			return -1, fmt.Errorf("cell: mount point %s: %w", m.target, err)
		}
	}
	if !writable {
		if err := unix.MountSetattr(fd, "", unix.AT_EMPTY_PATH, &unix.MountAttr{Attr_set: unix.MOUNT_ATTR_RDONLY}); err != nil {
			_ = unix.Close(fd)
			return -1, fmt.Errorf("cell: empty root: %w", err)
		}
	}
	return fd, nil
}

func inside(target string, mounts []placed) bool {
	return slices.ContainsFunc(mounts, func(m placed) bool { return strings.HasPrefix(target, m.target+"/") })
}

// makePoint makes a mount point in a tree that only root has seen so far.
func makePoint(root int, m placed) error {
	rel := strings.TrimPrefix(m.target, "/")
	at := ""
	for _, name := range strings.Split(path.Dir(rel), "/") {
		if name == "." {
			break
		}
		at = path.Join(at, name)
		if err := unix.Mkdirat(root, at, 0o755); err != nil && !errors.Is(err, unix.EEXIST) {
			return err
		}
	}
	if !m.file {
		if err := unix.Mkdirat(root, rel, 0o755); err != nil && !errors.Is(err, unix.EEXIST) {
			return err
		}
		return nil
	}
	fd, err := unix.Openat(root, rel, unix.O_CREAT|unix.O_CLOEXEC|unix.O_NOFOLLOW, 0o644)
	if err != nil {
		return err
	}
	return unix.Close(fd)
}
