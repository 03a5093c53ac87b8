package image

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"os/exec"
	"sync"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"bulkhead/internal/cgroup"
	"bulkhead/internal/thread"
)

// wayOutID is whom the builder's proxy runs as; like [BuilderID] it owns nothing.
const wayOutID = BuilderID + 1

// WayOutRequest tells the proxy what a build may reach.
type WayOutRequest struct {
	Egress []string `json:"egress"` // host:port
}

// walls are a network namespace that has loopback alone, and a proxy outside
// of it that listens inside: the build's one way to anywhere.
type walls struct {
	proxy   *exec.Cmd
	address string      // of the proxy, inside
	start   chan func() // runs on the thread that is inside
}

// build puts the walls up. program holds the proxy ("wayout").
func (b *Builder) build(ctx context.Context, program *os.File, log io.Writer) (_ *walls, err error) {
	egress, err := b.Egress(ctx)
	if err != nil {
		return nil, fmt.Errorf("image: what the build may reach: %w", err)
	}
	request, err := json.Marshal(WayOutRequest{Egress: egress})
	if err != nil {
		return nil, fmt.Errorf("image: %w", err)
	}
	w := &walls{start: make(chan func())}
	listener, err := w.enter()
	if err != nil {
		return nil, err
	}
	defer func() { _ = listener.Close() }()
	_, _ = fmt.Fprintf(log, "image: the build can reach %v, and nothing else\n", egress)
	w.proxy = exec.CommandContext(ctx, "/proc/self/fd/3", "wayout") // #nosec G204 -- our own program
	w.proxy.ExtraFiles = []*os.File{program, listener}
	w.proxy.Dir, w.proxy.Env = "/", hostEnv("PATH=/usr/bin:/bin")
	w.proxy.Stdin, w.proxy.Stderr = bytes.NewReader(request), log
	w.proxy.WaitDelay = 10 * time.Second
	w.proxy.SysProcAttr = &syscall.SysProcAttr{Setsid: true, Cloneflags: syscall.CLONE_NEWPID, Credential: &syscall.Credential{Uid: wayOutID, Gid: wayOutID}}
	if err := w.proxy.Start(); err != nil {
		close(w.start)
		return nil, fmt.Errorf("image: the build's proxy: %w", err)
	}
	return w, nil
}

// enter makes the namespace and the proxy's listener in it. The thread that
// did stays inside, to start the build, and ends with w.start.
func (w *walls) enter() (*os.File, error) {
	type made struct {
		file *os.File
		err  error
	}
	done := make(chan made)
	go thread.Run(func() {
		f, err := w.make()
		done <- made{f, err}
		for fn := range w.start {
			fn()
		}
	})
	m := <-done
	if m.err != nil {
		close(w.start)
		return nil, fmt.Errorf("image: the build's network namespace: %w", m.err)
	}
	return m.file, nil
}

func (w *walls) make() (*os.File, error) {
	if err := unix.Unshare(unix.CLONE_NEWNET); err != nil {
		return nil, err
	}
	fd, err := unix.Socket(unix.AF_INET, unix.SOCK_DGRAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return nil, err
	}
	defer func() { _ = unix.Close(fd) }()
	lo, err := unix.NewIfreq("lo")
	if err != nil {
		return nil, err
	}
	lo.SetUint16(unix.IFF_UP)
	if err := unix.IoctlIfreq(fd, unix.SIOCSIFFLAGS, lo); err != nil { // netdevice(7)
		return nil, err
	}
	var config net.ListenConfig
	config.SetMultipathTCP(false)
	ln, err := config.Listen(context.Background(), "tcp4", "127.0.0.1:0")
	if err != nil {
		return nil, err
	}
	w.address = ln.Addr().String()
	f, err := ln.(*net.TCPListener).File()
	return f, errors.Join(err, ln.Close())
}

// run starts cmd inside, in the group if there is one, and waits for it.
func (w *walls) run(cmd *exec.Cmd, group *cgroup.Group) error {
	started := make(chan error)
	w.start <- func() { started <- startIn(cmd, group) }
	if err := <-started; err != nil {
		return err
	}
	return cmd.Wait()
}

// startIn starts cmd so that it is born in the group. The calling thread, which
// stays in it on version 1, ends soon.
func startIn(cmd *exec.Cmd, group *cgroup.Group) error {
	switch {
	case group == nil:
	case group.Unified():
		dir, err := group.Open()
		if err != nil {
			return err
		}
		defer func() { _ = dir.Close() }()
		cmd.SysProcAttr.UseCgroupFD, cmd.SysProcAttr.CgroupFD = true, int(dir.Fd()) // #nosec G115 -- a descriptor
	default:
		if err := group.JoinThread(); err != nil {
			return err
		}
	}
	return cmd.Start()
}

// remove ends the proxy. The namespace goes with the last process in it.
func (w *walls) remove() {
	close(w.start)
	_ = w.proxy.Process.Kill()
	_ = w.proxy.Wait() // killed is how it ends
}

// env is how clients are told of the proxy.
func (w *walls) env() []string {
	url := "http://" + w.address
	return []string{"http_proxy=" + url, "https_proxy=" + url, "HTTP_PROXY=" + url, "HTTPS_PROXY=" + url}
}

// hostEnv are the variables by which this host says how it reaches others.
func hostEnv(more ...string) []string {
	for _, name := range passed {
		if v, ok := os.LookupEnv(name); ok {
			more = append(more, name+"="+v)
		}
	}
	return more
}

// shared is a log that two processes write to.
type shared struct {
	mu sync.Mutex // guards to
	to io.Writer
}

func (s *shared) Write(b []byte) (int, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.to.Write(b)
}
