package image

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"os/user"
	"path/filepath"
	"runtime"
	"strconv"
	"syscall"
	"time"

	"bulkhead/internal/cgroup"
)

// BuilderID is whom fetching runs as. No account has it, and useradd and
// subordinate ranges do not reach it (shadow's SUB_UID_MAX is 600100000), so
// nothing on the host belongs to it.
const BuilderID = 2_000_000_001

// StepsID is user 0 of a Containerfile's build, from outside, and the first of
// stepsIDs, which own as little.
const (
	StepsID  = 2_000_100_000
	stepsIDs = 65536
)

// passed are the variables of the host that the fetcher keeps: how to reach
// the registries that apt and npm are configured with.
var passed = []string{"http_proxy", "https_proxy", "no_proxy", "HTTP_PROXY", "HTTPS_PROXY", "NO_PROXY", "SSL_CERT_FILE", "NODE_EXTRA_CA_CERTS"}

// Builder makes tars from recipes and keeps them.
type Builder struct {
	// Fetch is the command whose body is [Fetch], or registry.Pull: the path of
	// a program, and the argument that leads there.
	Fetch []string
	// Cache keeps finished tars, by recipe digest. Empty keeps none.
	Cache string
	// Egress says what the process may reach, as host:port; it is asked when
	// something is fetched. Everything else has no route (root only: see fetch).
	Egress func(ctx context.Context) ([]string, error)
	// Group, if set, makes the control group that bounds the process, and says
	// how it is removed.
	Group func() (group *cgroup.Group, remove func(), err error)
	// Log gets progress.
	Log io.Writer

	steps bool // run steps: as user 0 of a namespace
}

// CacheDir is where tars are kept by default.
func CacheDir() (string, error) {
	dir, err := os.UserCacheDir() // XDG_CACHE_HOME or ~/.cache
	if err != nil {
		return "", fmt.Errorf("image: cache: %w: set XDG_CACHE_HOME", err)
	}
	return filepath.Join(dir, "bulkhead", "images"), nil
}

// Tar gives the recipe's tar, from the cache or anew. The caller closes it.
func (b *Builder) Tar(ctx context.Context, r *Recipe) (*os.File, error) {
	digest, err := r.Digest()
	if err != nil {
		return nil, err
	}
	request, err := json.Marshal(r)
	if err != nil {
		return nil, fmt.Errorf("image: %w", err)
	}
	return b.tar(ctx, r.Name, digest+".tar", bytes.NewReader(request))
}

// Layers gives the layers of an image of a registry, from the cache or anew.
// The caller closes the file.
func (b *Builder) Layers(ctx context.Context, reference string, limits Limits) (*os.File, error) {
	hex, err := ParseReference(reference)
	if err != nil {
		return nil, fmt.Errorf("image: %w", err)
	}
	request, err := json.Marshal(PullRequest{Reference: reference, Bytes: limits.Bytes})
	if err != nil {
		return nil, fmt.Errorf("image: %w", err)
	}
	return b.tar(ctx, reference, "pulled-"+hex+"-"+runtime.GOARCH+".tar", bytes.NewReader(request))
}

// buildDir is where builds work and what they make lies.
const buildDir = "/var/tmp"

// tar gives what the unprivileged process makes of a request, kept under the
// name as.
func (b *Builder) tar(ctx context.Context, what, as string, request io.Reader) (_ *os.File, err error) {
	if b.Cache != "" {
		if f := openCached(filepath.Join(b.Cache, as)); f != nil {
			_, _ = fmt.Fprintf(b.Log, "image %s: from the cache (%s)\n", what, f.Name())
			return f, nil
		}
	}
	dir := b.Cache
	if dir == "" {
		dir = buildDir // not in memory
	} else if err := os.MkdirAll(dir, 0o700); err != nil {
		return nil, fmt.Errorf("image: cache: %w", err)
	}
	f, err := os.CreateTemp(dir, "build-*.tar")
	if err != nil {
		return nil, fmt.Errorf("image: %w", err)
	}
	defer func() {
		if err != nil {
			err = errors.Join(err, f.Close(), os.Remove(f.Name()))
		}
	}()
	if err := b.fetch(ctx, what, request, f); err != nil {
		return nil, err
	}
	if b.Cache == "" {
		err = os.Remove(f.Name()) // lives on as the open file
	} else {
		err = os.Rename(f.Name(), filepath.Join(b.Cache, as))
	}
	if err != nil {
		return nil, fmt.Errorf("image: %w", err)
	}
	if _, err := f.Seek(0, io.SeekStart); err != nil {
		return nil, fmt.Errorf("image: %w", err)
	}
	return f, nil
}

// Steps runs the process (containerfile.Build) on what a Containerfile's build
// needs, and gives the tree as a tar, which is not kept: a step may do
// something else each time. The caller closes it. Root only: the process gets a
// user namespace with ids that nobody may hand out otherwise.
func (b *Builder) Steps(ctx context.Context, what string, request *os.File) (*os.File, error) {
	if os.Geteuid() != 0 {
		return nil, errors.New("image: building from a Containerfile needs root, for the ids and the walls of its steps: run it with sudo")
	}
	once := *b
	once.steps = true
	return once.Once(ctx, what, request)
}

// Once gives what the process makes of a request, which is not kept. The caller
// closes it.
func (b *Builder) Once(ctx context.Context, what string, request io.Reader) (*os.File, error) {
	once := *b
	once.Cache = ""
	return once.tar(ctx, what, "", request)
}

// openCached opens a finished tar that only this user could have written.
func openCached(path string) *os.File {
	f, err := os.OpenFile(path, os.O_RDONLY|syscall.O_NOFOLLOW, 0) // #nosec G304 -- our cache
	if err != nil {
		return nil
	}
	info, err := f.Stat()
	if err == nil && info.Mode().IsRegular() && info.Mode()&0o022 == 0 {
		if st, ok := info.Sys().(*syscall.Stat_t); ok && int(st.Uid) == os.Geteuid() {
			return f
		}
	}
	_ = f.Close()
	return nil
}

// fetch runs the unprivileged process.
func (b *Builder) fetch(ctx context.Context, what string, request io.Reader, out *os.File) (err error) {
	dir, err := os.MkdirTemp(buildDir, "bulkhead-build-") // hundreds of MB: not in memory
	if err != nil {
		return fmt.Errorf("image: %w", err)
	}
	defer func() { err = errors.Join(err, os.RemoveAll(dir)) }()

	log := &shared{to: b.Log}
	// By descriptor: the program may lie where only this user can look.
	program, err := os.Open(b.Fetch[0])
	if err != nil {
		return fmt.Errorf("image: %w", err)
	}
	defer func() { _ = program.Close() }()
	cmd := exec.CommandContext(ctx, "/proc/self/fd/3", b.Fetch[1:]...) // #nosec G204 -- our own program
	cmd.ExtraFiles = []*os.File{program}
	cmd.Dir = dir
	cmd.Stdin, cmd.Stdout, cmd.Stderr = request, out, log
	cmd.WaitDelay = 10 * time.Second
	cmd.Env = []string{"PATH=/usr/local/bin:/usr/bin:/bin:/usr/sbin:/sbin", "HOME=" + dir, "TMPDIR=" + dir, "LC_ALL=C.UTF-8"}
	cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL, Setsid: true}
	if os.Geteuid() != 0 {
		_, _ = fmt.Fprintln(b.Log, "image: not root: fetching with your own id, and with the network that it has")
		cmd.Env = hostEnv(cmd.Env...)
	} else {
		if u, err := user.LookupId(strconv.Itoa(BuilderID)); err == nil {
			return fmt.Errorf("image: id %d belongs to account %s: fetching must run as an id that owns nothing", BuilderID, u.Username)
		}
		id := b.become(cmd.SysProcAttr)
		if err := os.Chown(dir, id, id); err != nil {
			return fmt.Errorf("image: %w", err)
		}
	}
	run := cmd.Run
	if os.Geteuid() == 0 {
		group, removeGroup, err := b.bound()
		if err != nil {
			return err
		}
		defer removeGroup()
		w, err := b.build(ctx, program, log)
		if err != nil {
			return err
		}
		defer w.remove()
		cmd.Env = append(cmd.Env, w.env()...)
		for _, name := range []string{"SSL_CERT_FILE", "NODE_EXTRA_CA_CERTS"} {
			if v, ok := os.LookupEnv(name); ok {
				cmd.Env = append(cmd.Env, name+"="+v)
			}
		}
		run = func() error { return w.run(cmd, group) }
	}
	if err := run(); err != nil {
		return fmt.Errorf("image %s: fetching failed, see above: %w", what, err)
	}
	return nil
}

// become says whom the process runs as, seen from outside. The kernel ends
// whatever is left when the process ends.
func (b *Builder) become(sys *syscall.SysProcAttr) int {
	sys.Cloneflags = syscall.CLONE_NEWPID | syscall.CLONE_NEWIPC | syscall.CLONE_NEWUTS
	if !b.steps {
		sys.Credential = &syscall.Credential{Uid: BuilderID, Gid: BuilderID}
		return BuilderID
	}
	sys.Cloneflags |= syscall.CLONE_NEWUSER | syscall.CLONE_NEWNS
	ids := []syscall.SysProcIDMap{{ContainerID: 0, HostID: StepsID, Size: stepsIDs}}
	sys.UidMappings, sys.GidMappings, sys.GidMappingsEnableSetgroups = ids, ids, true
	sys.Credential = &syscall.Credential{}
	return StepsID
}

// bound makes the control group, which is nil without one.
func (b *Builder) bound() (*cgroup.Group, func(), error) {
	if b.Group == nil {
		return nil, func() {}, nil
	}
	return b.Group()
}
