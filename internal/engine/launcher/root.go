package launcher

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"golang.org/x/sys/unix"

	"bulkhead/internal/engine"
	"bulkhead/internal/engine/cell"
	"bulkhead/internal/engine/podman"
)

// privateDir holds what only the launcher may see.
const (
	privateDir  = "/.launcher"
	groupsDir   = privateDir + "/cgroup"
	skeletonDir = privateDir + "/skeleton" // mount points for roots that lack some
)

// containerDir is where a thread that starts Podman places the container's
// tree, and shownGroupsDir where it shows runc the control groups, in a mount
// namespace of its own. Everywhere else both are empty.
const (
	containerDir   = "/.container"
	shownGroupsDir = "/.cgroup"
)

// hostPrograms are the folders of the host that a bare account needs to run
// anything at all.
var hostPrograms = []string{"/usr", "/bin", "/sbin", "/lib", "/lib32", "/lib64", "/libx32"}

// makeCell makes the launcher's fresh namespaces the account cell. Its root is
// there: see [makeRoot].
func makeCell(cfg *Config) error {
	if err := unix.Sethostname([]byte(cfg.Place.Account)); err != nil {
		return fmt.Errorf("launcher: host name: %w", err)
	}
	if err := cell.SetUpLoopback(engine.Network{}); err != nil {
		return err
	}
	if err := finishRoot(cfg); err != nil {
		return fmt.Errorf("launcher: account cell of %s: %w", cfg.Place.Account, err)
	}
	return nil
}

// source is one path of the host, shown at the same path.
type source struct {
	path  string
	flags uintptr
	deep  bool // with the mounts below it
}

func sources(cfg *Config) []source {
	const guarded = unix.MS_NOSUID | unix.MS_NODEV
	out := []source{
		{cfg.Place.State, guarded, true},
		{cfg.Place.Run, guarded, true},
		{cfg.Host.Images(), guarded | unix.MS_RDONLY, true},
		{cfg.Programs, guarded | unix.MS_RDONLY, true},
	}
	for _, s := range cfg.Sources {
		out = append(out, source{s, guarded, true})
	}
	// Parents before children.
	slices.SortStableFunc(out, func(a, b source) int { return strings.Count(a.path, "/") - strings.Count(b.path, "/") })
	return out
}

// makeRoot gives the calling thread, on the host, the mount namespace and the
// root that the launcher is born with: a copy of bare with what the account
// cell shows. Not the launcher itself, since that would start with a copy of
// the host's mounts, every agent's disks among them.
func makeRoot(cfg *Config, bare *cell.Bare) error {
	all := sources(cfg)
	// The host's paths, while they are in sight.
	trees := make([]int, len(all))
	for i, s := range all {
		fd, err := openTree(s)
		if err != nil {
			return err
		}
		trees[i] = fd
	}
	programs, err := openPrograms()
	if err != nil {
		return err
	}
	groups, err := openTree(source{"/sys/fs/cgroup", unix.MS_NOSUID | unix.MS_NODEV | unix.MS_NOEXEC, true})
	if err != nil {
		return err
	}
	cache, err := openTree(source{"/etc/ld.so.cache", unix.MS_NOSUID | unix.MS_NODEV | unix.MS_RDONLY, false})
	if err != nil && !errors.Is(err, unix.ENOENT) {
		return err
	}
	dev, err := cell.Devices()
	if err != nil {
		return err
	}
	root, err := cell.MemoryMount(unix.MOUNT_ATTR_NOSUID|unix.MOUNT_ATTR_NODEV, map[string]string{"size": "4m", "mode": "0755"})
	if err != nil {
		return err
	}
	defer func() { _ = unix.Close(root) }()
	if err := bare.Enter(); err != nil {
		return err
	}
	if err := cell.SetRoot(root); err != nil {
		return err
	}
	if err := programs.place(); err != nil {
		return err
	}
	for _, d := range []struct {
		path string
		mode os.FileMode
	}{{"/proc", 0o555}, {"/dev", 0o755}, {"/sys", 0o755}, {"/sys/fs", 0o755}, {"/sys/fs/cgroup", 0o755}, {"/tmp", 0o755}, {"/etc", 0o755}, {containerDir, 0o755}, {shownGroupsDir, 0o755}, {privateDir, 0o700}, {groupsDir, 0o700}, {skeletonDir, 0o755}} {
		if err := os.Mkdir(d.path, d.mode); err != nil {
			return fmt.Errorf("new root: %w", err)
		}
	}
	if cache >= 0 {
		if err := makePoint(cache, "/etc/ld.so.cache"); err != nil {
			return err
		}
		if err := attach(cache, "/etc/ld.so.cache"); err != nil {
			return err
		}
	}
	if err := attach(dev, "/dev"); err != nil {
		return err
	}
	if err := attach(groups, groupsDir); err != nil {
		return err
	}
	if err := cell.MakePoints(skeletonDir, podman.Points()); err != nil {
		return err
	}
	for i, s := range all {
		if err := makePoint(trees[i], s.path); err != nil {
			return err
		}
		if err := attach(trees[i], s.path); err != nil {
			return err
		}
	}
	return nil
}

// openTree makes a detached mount of a host path.
func openTree(s source) (int, error) {
	flags, at := uint(unix.OPEN_TREE_CLONE|unix.OPEN_TREE_CLOEXEC), uint(unix.AT_EMPTY_PATH)
	if s.deep {
		flags |= unix.AT_RECURSIVE
		at |= unix.AT_RECURSIVE
	}
	fd, err := unix.OpenTree(unix.AT_FDCWD, s.path, flags)
	if err != nil {
		return -1, fmt.Errorf("host path %s: %w", s.path, err)
	}
	var attr uint64
	for _, f := range []struct {
		flag uintptr
		attr uint64
	}{{unix.MS_RDONLY, unix.MOUNT_ATTR_RDONLY}, {unix.MS_NOSUID, unix.MOUNT_ATTR_NOSUID}, {unix.MS_NODEV, unix.MOUNT_ATTR_NODEV}, {unix.MS_NOEXEC, unix.MOUNT_ATTR_NOEXEC}} {
		if s.flags&f.flag != 0 {
			attr |= f.attr
		}
	}
	if err := unix.MountSetattr(fd, "", at, &unix.MountAttr{Attr_set: attr, Propagation: unix.MS_PRIVATE}); err != nil {
		_ = unix.Close(fd)
		return -1, fmt.Errorf("host path %s: flags: %w", s.path, err)
	}
	return fd, nil
}

// attach moves a detached mount to a path of the new root.
func attach(fd int, path string) error {
	defer func() { _ = unix.Close(fd) }()
	if err := unix.MoveMount(fd, "", unix.AT_FDCWD, path, unix.MOVE_MOUNT_F_EMPTY_PATH); err != nil {
		return fmt.Errorf("mount %s: %w", path, err)
	}
	return nil
}

// makePoint makes the mount point, a folder or a file like the source. One
// that lies in an earlier mount is there already.
func makePoint(fd int, path string) error {
	var st unix.Stat_t
	if err := unix.Fstat(fd, &st); err != nil {
		return fmt.Errorf("host path %s: %w", path, err)
	}
	if _, err := os.Lstat(path); err == nil {
		return nil
	}
	if st.Mode&unix.S_IFMT == unix.S_IFDIR {
		if err := os.MkdirAll(path, 0o755); err != nil { // #nosec G301 -- an empty mount point on the way to an agent's folder
			return fmt.Errorf("mount point %s: %w", path, err)
		}
		return nil
	}
	if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil { // #nosec G301 -- as above
		return fmt.Errorf("mount point %s: %w", path, err)
	}
	// Not by open(2): another thread that forks meanwhile would have a copy of the
	// descriptor for a moment, and with a writer the root cannot be made read-only.
	if err := unix.Mknod(path, unix.S_IFREG|0o600, 0); err != nil {
		return fmt.Errorf("mount point %s: %w", path, err)
	}
	return nil
}

// programTrees are the host's program folders: mounts, and links where the
// host has merged them into /usr.
type programTrees struct {
	trees map[string]int
	links map[string]string
}

func openPrograms() (*programTrees, error) {
	p := &programTrees{trees: map[string]int{}, links: map[string]string{}}
	for _, path := range hostPrograms {
		st, err := os.Lstat(path)
		if errors.Is(err, fs.ErrNotExist) {
			continue
		}
		if err != nil {
			return nil, err
		}
		if st.Mode()&fs.ModeSymlink != 0 {
			if p.links[path], err = os.Readlink(path); err != nil {
				return nil, err
			}
			continue
		}
		if p.trees[path], err = openTree(source{path, unix.MS_NOSUID | unix.MS_NODEV | unix.MS_RDONLY, true}); err != nil {
			return nil, err
		}
	}
	return p, nil
}

func (p *programTrees) place() error {
	for path, fd := range p.trees {
		if err := os.Mkdir(path, 0o755); err != nil { // #nosec G301 -- a mount point
			return fmt.Errorf("new root: %w", err)
		}
		if err := attach(fd, path); err != nil {
			return err
		}
	}
	for path, target := range p.links {
		if err := os.Symlink(target, path); err != nil {
			return fmt.Errorf("new root: %w", err)
		}
	}
	return nil
}

// makeEtc writes the few files that ordinary programs expect.
func makeEtc(cfg *Config) error {
	files := map[string]string{
		"passwd":        fmt.Sprintf("root:x:0:0:root:/:/usr/sbin/nologin\n%s:x:%d:%d::/:/bin/sh\n", cfg.Place.Account, cfg.Account, cfg.Account),
		"group":         fmt.Sprintf("root:x:0:\n%s:x:%d:\n", cfg.Place.Account, cfg.Account),
		"hosts":         "127.0.0.1 localhost\n::1 localhost\n",
		"nsswitch.conf": "passwd: files\ngroup: files\nhosts: files\n",
		"resolv.conf":   "",
	}
	for name, text := range files {
		if err := os.WriteFile(filepath.Join("/etc", name), []byte(text), 0o644); err != nil { // #nosec G306 -- world-readable like every /etc/passwd
			return fmt.Errorf("/etc/%s: %w", name, err)
		}
	}
	return nil
}

// finishRoot, in the launcher, writes what nobody else may have open, mounts
// what belongs to the launcher's own namespaces, and makes the root read-only.
func finishRoot(cfg *Config) error {
	if err := makeEtc(cfg); err != nil {
		return err
	}
	const safe = unix.MS_NOSUID | unix.MS_NODEV | unix.MS_NOEXEC
	for _, m := range []struct {
		kind, path, options string
		flags               uintptr
	}{
		{"proc", "/proc", "hidepid=invisible", safe},
		{"devpts", "/dev/pts", "newinstance,ptmxmode=0666,mode=0620", unix.MS_NOSUID | unix.MS_NOEXEC},
		{"tmpfs", "/dev/shm", "size=16m,mode=1777", safe},
		{"tmpfs", "/tmp", "size=64m,mode=1777", unix.MS_NOSUID | unix.MS_NODEV},
	} {
		if err := unix.Mount(m.kind, m.path, m.kind, m.flags, m.options); err != nil {
			return fmt.Errorf("mount %s: %w", m.path, err)
		}
	}
	if err := unix.Mount("", "/", "", unix.MS_REMOUNT|unix.MS_BIND|unix.MS_RDONLY|unix.MS_NOSUID|unix.MS_NODEV, ""); err != nil {
		return fmt.Errorf("make the root read-only: %w", err)
	}
	return nil
}
