package main

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"syscall"

	"golang.org/x/sys/unix"

	"bulkhead/internal/adapter"
	"bulkhead/internal/adapter/protocol"
	"bulkhead/internal/engine"
	"bulkhead/internal/gateway/gatewayconfig"
)

func as(id int) *syscall.SysProcAttr {
	return &syscall.SysProcAttr{Credential: &syscall.Credential{Uid: uint32(id), Gid: uint32(id)}} // #nosec G115 -- a constant
}

// sinks are recipients: each message has one, and few enough are sent in a
// turn that no queue (500) overflows.
const sinks = 512

func sink(i int) string { return fmt.Sprint("sink", i%sinks) }

// start starts an adapter, and a gateway before it with rest, as the warden
// does, with nothing in them.
func start(bin, run, dir string, rest bool) (s server, err error) {
	for d, id := range map[string]int{"adapter": adapterID, "data": gatewayID} {
		d = filepath.Join(dir, d)
		if err := errors.Join(os.RemoveAll(d), os.Mkdir(d, 0o700), os.Chown(d, id, id)); err != nil {
			return s, err
		}
	}
	exe := filepath.Join(run, "bulkhead-serve")
	if _, err := os.Stat(exe); err != nil {
		if err := copyFile(filepath.Join(bin, "bulkhead-serve"), exe); err != nil {
			return s, err
		}
	}
	s.address = filepath.Join(run, "adapter.sock")
	a, err1 := listen(s.address)
	o, err2 := listen(filepath.Join(run, "operator.sock"))
	config, err3 := pipe(protocol.Config{
		Team: "bench", Database: filepath.Join(dir, "adapter", "messages.db"), Listeners: []string{"a", protocol.OperatorListener},
		Agents: map[string]protocol.Agent{"a": {GatewayID: gatewayID, TokenHash: protocol.HashToken(token)}},
		Policy: policy(),
	})
	if err := errors.Join(err1, err2, err3, s.launch(exe, engine.RoleAdapter, adapterID, "adapter", config, a, o)); err != nil || !rest {
		return s, err
	}
	adapterSocket := s.address
	s.address = filepath.Join(run, "gateway.sock")
	g, err1 := listen(s.address)
	config, err2 = pipe(gatewayconfig.Config{
		Team: "bench", Agent: "a", Token: token, RuntimeID: runtimeID, DialerSocket: filepath.Join(run, "none"),
		AdapterSocket: adapterSocket, AdapterToken: token, Data: filepath.Join(dir, "data"),
	})
	err = errors.Join(err1, err2, s.launch(exe, engine.RoleGateway, gatewayID, "gateway", g, config))
	return s, err
}

func policy() adapter.Policy {
	p := adapter.Policy{Team: "bench", Agents: map[string]adapter.AgentPolicy{}}
	var to []string
	for i := range sinks {
		to = append(to, sink(i))
		p.Agents[sink(i)] = adapter.AgentPolicy{}
	}
	p.Agents["a"] = adapter.AgentPolicy{To: to, MaxBytes: 1 << 40}
	return p
}

// launch starts one of our servers, with the timers that its container has.
func (s *server) launch(exe string, role engine.Role, id int, verb string, files ...*os.File) error {
	cmd := exec.Command(exe, verb) // #nosec G204 -- our own program
	defer func() {
		for _, f := range files {
			_ = f.Close() // it has its own
		}
	}()
	cmd.ExtraFiles, cmd.SysProcAttr, cmd.Stderr = files, as(id), os.Stderr
	runtime.LockOSThread() // the child inherits what the thread has
	defer runtime.UnlockOSThread()
	slack := engine.TimerSlack(role)
	err := unix.Prctl(unix.PR_SET_TIMERSLACK, uintptr(slack.Nanoseconds()), 0, 0, 0) // #nosec G115 -- positive
	if err == nil {
		err = cmd.Start()
	}
	if err = errors.Join(err, unix.Prctl(unix.PR_SET_TIMERSLACK, 0, 0, 0, 0)); err != nil { // the thread's own again
		return err
	}
	s.pids = append(s.pids, cmd.Process.Pid)
	before := s.stop
	s.stop = func() {
		_ = cmd.Process.Kill()
		_ = cmd.Wait()
		if before != nil {
			before()
		}
	}
	return nil
}

func listen(path string) (*os.File, error) {
	_ = os.Remove(path) // of the turn before
	l, err := net.ListenUnix("unix", &net.UnixAddr{Name: path, Net: "unix"})
	if err != nil {
		return nil, err
	}
	l.SetUnlinkOnClose(false)
	defer func() { _ = l.Close() }()                    // the file is another descriptor
	return errorsFirst(l.File())(os.Chmod(path, 0o777)) // #nosec G302 -- the servers look at ids
}

func errorsFirst(f *os.File, err error) func(error) (*os.File, error) {
	return func(more error) (*os.File, error) { return f, errors.Join(err, more) }
}

func pipe(v any) (*os.File, error) {
	r, w, err := os.Pipe()
	if err != nil {
		return nil, err
	}
	text, err := json.Marshal(v)
	if err == nil {
		_, err = w.Write(text)
	}
	return r, errors.Join(err, w.Close())
}

func copyFile(from, to string) error {
	in, err := os.Open(from) // #nosec G304 G703 -- our own programs, in our own folder
	if err != nil {
		return err
	}
	defer func() { _ = in.Close() }()
	out, err := os.OpenFile(to, os.O_CREATE|os.O_WRONLY|os.O_TRUNC, 0o755) // #nosec G302 G304 -- a program
	if err != nil {
		return err
	}
	_, err = io.Copy(out, in)
	return errors.Join(err, out.Close())
}
