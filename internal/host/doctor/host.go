package doctor

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path"
	"strconv"
	"strings"
	"time"

	"bulkhead/internal/layout"
)

// Host is what is examined.
type Host struct {
	Files  fs.FS // the root folder; names without the leading slash
	Kernel Kernel
	Layout layout.Host
	Build  string // of the asking program; "" leaves the comparison out
	// Ping greets the warden and gives its build; gone says that none runs. nil
	// leaves the question out: the warden does not ask itself.
	Ping func(context.Context) (build string, gone bool, err error)
}

// Kernel answers what no file does. Nothing in it changes the host.
type Kernel interface {
	// Root says whether this process has id 0.
	Root() bool
	// LandlockABI is 0 without Landlock.
	LandlockABI() int
	// Seccomp says why filters cannot be used.
	Seccomp() error
	// Netfilter says why the kernel's nftables cannot be talked to.
	Netfilter() error
	// Tables lists the tables of this network namespace. It needs CAP_NET_ADMIN.
	Tables() ([]Table, error)
	// Space says what is left on the filesystem of a path.
	Space(path string) (Space, error)
	// Clock reads the time and whether something keeps it right.
	Clock() (now time.Time, synchronised bool, err error)
	// Version runs an installed program with --version and gives its first line.
	Version(ctx context.Context, path string) (string, error)
}

// Table is an nftables table.
type Table struct {
	Family string // "inet", "ip", "ip6", "arp", "bridge", "netdev"
	Name   string
}

func (t Table) String() string { return t.Family + " " + t.Name }

// Space is what statfs(2) says. Filesystems without a fixed number of inodes
// have none of them.
type Space struct {
	Bytes, FreeBytes   uint64
	Inodes, FreeInodes uint64
}

// Here is the host that this process runs on.
func Here() Host {
	return Host{Files: os.DirFS("/"), Kernel: system{}, Layout: layout.Default()}
}

// maxFile bounds what is read of any file.
const maxFile = 64 << 20

// text reads a file without the white space around it.
func (h Host) text(name string) (string, error) {
	raw, err := fs.ReadFile(h.Files, strings.TrimPrefix(name, "/"))
	if err != nil {
		return "", err
	}
	if len(raw) > maxFile {
		return "", fmt.Errorf("%s is larger than %d bytes", name, maxFile)
	}
	return strings.TrimSpace(string(raw)), nil
}

func (h Host) exists(name string) bool {
	_, err := fs.Stat(h.Files, strings.TrimPrefix(name, "/"))
	return err == nil
}

// program finds an executable in dirs; "" when there is none.
func (h Host) program(name string, dirs []string) string {
	for _, d := range dirs {
		p := path.Join(d, name)
		if st, err := fs.Stat(h.Files, strings.TrimPrefix(p, "/")); err == nil && st.Mode().IsRegular() && st.Mode()&0o111 != 0 {
			return p
		}
	}
	return ""
}

// number reads a file that holds one number.
func (h Host) number(name string) (int, error) {
	s, err := h.text(name)
	if err != nil {
		return 0, err
	}
	n, err := strconv.Atoi(s)
	if err != nil {
		return 0, fmt.Errorf("%s holds %q, which is no number", name, s)
	}
	return n, nil
}

func absent(err error) bool { return errors.Is(err, fs.ErrNotExist) }

// unread is the answer when a file that matters could not be read.
func unread(where string, err error) Answer {
	a := Answer{State: Unknown, Found: "cannot be read: " + reason(err), Where: where}
	if errors.Is(err, fs.ErrPermission) {
		a.Mend = "run bulkhead doctor with sudo"
	}
	return a
}

// reason leaves out of an error the path, which the line names already.
func reason(err error) string {
	var p *fs.PathError
	if errors.As(err, &p) {
		return p.Err.Error()
	}
	return err.Error()
}

// sysctl asks about one number below /proc/sys. A kernel without it gives
// without.
func sysctl(where string, without Answer, judge func(n int) Answer) func(context.Context, Host) Answer {
	return func(_ context.Context, h Host) Answer {
		n, err := h.number(where)
		if absent(err) {
			without.Where = where
			return without
		}
		if err != nil {
			return unread(where, err)
		}
		a := judge(n)
		a.Where = where
		if a.Found == "" {
			a.Found = strconv.Itoa(n)
		}
		return a
	}
}

// osRelease is os-release(5).
type osRelease struct {
	id, version, pretty string
	like                []string
}

func (o osRelease) debian() bool { return o.id == "debian" }

// family says whether the distribution is made from Debian's packages.
func (o osRelease) family() bool {
	for _, l := range o.like {
		if l == "debian" {
			return true
		}
	}
	return o.debian()
}

func (o osRelease) String() string {
	if o.pretty != "" {
		return o.pretty
	}
	return strings.TrimSpace(o.id + " " + o.version)
}

func parseOSRelease(text string) osRelease {
	var o osRelease
	for line := range strings.Lines(text) {
		key, value, ok := strings.Cut(strings.TrimSpace(line), "=")
		if !ok {
			continue
		}
		value = strings.Trim(value, `"'`)
		switch key {
		case "ID":
			o.id = value
		case "ID_LIKE":
			o.like = strings.Fields(value)
		case "VERSION_ID":
			o.version = value
		case "PRETTY_NAME":
			o.pretty = value
		}
	}
	return o
}

// release reads os-release; where it cannot be read nothing is known to be
// tested.
func (h Host) release() osRelease {
	for _, f := range []string{"/etc/os-release", "/usr/lib/os-release"} {
		if text, err := h.text(f); err == nil {
			return parseOSRelease(text)
		}
	}
	return osRelease{}
}
