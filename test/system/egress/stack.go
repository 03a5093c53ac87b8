// Package egress brings the whole of layer 4 up in a throwaway host, with real
// processes under real ids: nftables, pins (in the test, which is root),
// resolver, dialer and gateway, and a network namespace as the runtime's.
//
// A test that uses it calls [Main] from TestMain: the processes are the test's
// own program, started again in a role.
package egress

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/netip"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"runtime"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"bulkhead/internal/dial"
	"bulkhead/internal/dialer"
	"bulkhead/internal/engine"
	"bulkhead/internal/gateway"
	"bulkhead/internal/host/nft"
	"bulkhead/internal/host/pins"
	"bulkhead/internal/layout"
	"bulkhead/internal/resolver"
	"bulkhead/internal/team"
	"bulkhead/internal/wire"
)

// insideThreads is how many things can happen inside the runtime at a time.
const insideThreads = 8

const roleVariable = "BULKHEAD_TEST_ROLE"

// Ids of the one agent, and of the resolver.
var (
	IDs        = layout.IDs{Account: 2001, Base: 200000, Dialer: 700001}
	ResolverID = uint32(700002)
)

// plainTCP listens without multipath TCP, which Go asks for by default.
var plainTCP = func() (l net.ListenConfig) { l.SetMultipathTCP(false); return }()

// Account is the agent's account.
const Account = "bh-t-writer"

// Token is the runtime's token.
const Token = "0123456789abcdefghijkl-test"

// Main runs the tests, or the role that the process was started for.
func Main(m *testing.M) {
	role := os.Getenv(roleVariable)
	if role == "" {
		os.Exit(m.Run())
	}
	ctx, stop := signal.NotifyContext(context.Background(), unix.SIGTERM)
	defer stop()
	if err := play(ctx, role); err != nil {
		fmt.Fprintln(os.Stderr, role+":", err)
		os.Exit(1)
	}
	os.Exit(0)
}

func play(ctx context.Context, role string) error {
	ln, err := net.FileListener(os.NewFile(3, "listener"))
	if err != nil {
		return err
	}
	u := ln.(*net.UnixListener)
	config := os.NewFile(4, "config")
	switch role {
	case "dialer":
		var cfg dialer.Config
		if err := json.NewDecoder(config).Decode(&cfg); err != nil {
			return err
		}
		return dialer.Serve(ctx, u, cfg)
	case "gateway":
		var cfg gateway.Config
		if err := json.NewDecoder(config).Decode(&cfg); err != nil {
			return err
		}
		gateway.Tune(&cfg)
		return gateway.Serve(ctx, u, cfg, os.Stdout)
	case "resolver":
		return resolver.Serve(ctx, u, resolver.Config{Client: 0})
	}
	return errors.New("no such role")
}

// Stack is the running layer.
type Stack struct {
	Table   *nft.Table
	Pins    *pins.Server
	Dialer  *Process
	Gateway *Process
	Dir     string
	Static  dial.Static

	t       testing.TB
	inside  chan func() // runs on a thread in the runtime's network namespace
	control *wire.Conn
	lookups *resolver.Client
}

// Process is one of ours under its own id.
type Process struct {
	cmd  *exec.Cmd
	mu   sync.Mutex
	out  strings.Builder
	done chan struct{}
}

// Output is what it printed so far, on both streams.
func (p *Process) Output() string {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.out.String()
}

// PID is its process id.
func (p *Process) PID() int { return p.cmd.Process.Pid }

// Kill ends it the hard way and waits.
func (p *Process) Kill() {
	_ = p.cmd.Process.Kill()
	<-p.done
}

// Stop ends it the soft way and waits.
func (p *Process) Stop() {
	_ = p.cmd.Process.Signal(unix.SIGTERM)
	<-p.done
}

func (p *Process) Write(b []byte) (int, error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.out.Write(b)
}

// Start brings the layer up for the agent. It must run in a throwaway host.
func Start(t testing.TB, a *team.Agent) *Stack {
	t.Helper()
	dir, err := os.MkdirTemp("/run", "egress-")
	fatal(t, err)
	fatal(t, os.Chmod(dir, 0o755)) // #nosec G302 -- other ids connect to sockets in it
	s := &Stack{t: t, Dir: dir, Static: dial.StaticFor(a), inside: make(chan func())}
	s.Table, err = nft.Open()
	fatal(t, err)
	t.Cleanup(func() { _ = s.Table.Close() })
	fatal(t, s.Table.Apply(context.Background(), nft.Want{
		Agents: []nft.Binding{{Account: Account, IDs: IDs}}, Refused: []nft.Range{{First: 700000, Last: 700999}},
		Resolver: &nft.Resolver{ID: ResolverID, Servers: []netip.Addr{netip.MustParseAddr("203.0.113.10")}},
	}))
	rl, rpath := s.listen("resolver.sock", 0)
	s.start("resolver", ResolverID, rl, nil)
	s.lookups = resolver.NewClient(rpath)
	t.Cleanup(func() { _ = s.lookups.Close() })
	s.StartPins(a)
	t.Cleanup(func() { _ = s.Pins.Close() })
	dl, dpath := s.listen("dialer.sock", IDs.Gateway())
	s.Dialer = s.start("dialer", IDs.Dialer, dl, dialer.Config{Gateway: IDs.Gateway(), PinSocket: filepath.Join(dir, "pin.sock"), Connections: 1536})
	gl, _ := s.listen("gateway.sock", IDs.Runtime())
	s.Gateway = s.start("gateway", IDs.Gateway(), gl, gateway.Config{
		Team: "t", Agent: a.Name, Token: Token, RuntimeID: IDs.Runtime(), Egress: a.Egress, Hosts: a.Hosts, DialerSocket: dpath,
	})
	s.runtime()
	return s
}

// StartPins starts the warden's part, again after [pins.Server.Close].
func (s *Stack) StartPins(a *team.Agent) {
	s.t.Helper()
	_ = os.Remove(filepath.Join(s.Dir, "pin.sock"))
	ln, _ := s.listenHere("pin.sock", IDs.Dialer)
	s.Pins = pins.New(pins.Config{Table: s.Table, Resolver: s.lookups})
	fatal(s.t, s.Pins.Add(Account, IDs.Dialer, ln, dial.NewPolicy(a)))
}

func fatal(t testing.TB, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

func (s *Stack) listenHere(name string, owner uint32) (*net.UnixListener, string) {
	s.t.Helper()
	path := filepath.Join(s.Dir, name)
	ln, err := net.ListenUnix("unix", &net.UnixAddr{Name: path, Net: "unix"})
	fatal(s.t, err)
	ln.SetUnlinkOnClose(false)
	fatal(s.t, os.Chown(path, 0, int(owner)))
	fatal(s.t, os.Chmod(path, 0o660)) // #nosec G302 -- group is the one id that may connect
	return ln, path
}

func (s *Stack) listen(name string, owner uint32) (*os.File, string) {
	s.t.Helper()
	ln, path := s.listenHere(name, owner)
	f, err := ln.File()
	fatal(s.t, err)
	fatal(s.t, ln.Close())
	return f, path
}

func (s *Stack) start(role string, id uint32, ln *os.File, config any) *Process {
	s.t.Helper()
	text, err := json.Marshal(config)
	fatal(s.t, err)
	path := filepath.Join(s.Dir, role+".json")
	fatal(s.t, os.WriteFile(path, text, 0o600))
	cfg, err := os.Open(path)
	fatal(s.t, err)
	p := &Process{cmd: exec.Command("/proc/self/exe"), done: make(chan struct{})}
	p.cmd.Env = []string{roleVariable + "=" + role}
	p.cmd.Stdout, p.cmd.Stderr = p, p
	p.cmd.ExtraFiles = []*os.File{ln, cfg}
	p.cmd.SysProcAttr = &syscall.SysProcAttr{Credential: &syscall.Credential{Uid: id, Gid: id}, Pdeathsig: syscall.SIGKILL}
	// As the launcher does (internal/engine/cell).
	slack := engine.TimerSlack(engine.Role(role))
	runtime.LockOSThread() // a process begins with the slack of the thread that starts it
	if slack > 0 {
		fatal(s.t, unix.Prctl(unix.PR_SET_TIMERSLACK, uintptr(slack.Nanoseconds()), 0, 0, 0)) // #nosec G115 -- positive
	}
	fatal(s.t, p.cmd.Start())
	fatal(s.t, unix.Prctl(unix.PR_SET_TIMERSLACK, 0, 0, 0, 0)) // the thread's own again
	runtime.UnlockOSThread()
	_ = ln.Close()
	_ = cfg.Close()
	go func() { _ = p.cmd.Wait(); close(p.done) }() // ended by Kill below
	s.t.Cleanup(func() { p.Kill() })
	return p
}

// runtime makes the runtime's network namespace with its listeners, and hands
// them to the gateway as the shim does.
func (s *Stack) runtime() {
	s.t.Helper()
	ready := make(chan error)
	space := make(chan int, 1)
	go func() { // ends with the channel; its thread ends with it
		runtime.LockOSThread()
		err := unix.Unshare(unix.CLONE_NEWNET)
		if err == nil {
			argv := [][]string{{"link", "set", "lo", "up"}}
			for _, p := range s.Static.Loopback {
				argv = append(argv, []string{"addr", "add", p.String(), "dev", "lo"})
			}
			for _, a := range argv {
				if out, e := exec.Command("ip", a...).CombinedOutput(); e != nil { // #nosec G204 -- addresses
					err = fmt.Errorf("ip %v: %w: %s", a, e, out)
				}
			}
		}
		fd, e := unix.Open("/proc/thread-self/ns/net", unix.O_RDONLY|unix.O_CLOEXEC, 0)
		space <- fd
		ready <- errors.Join(err, e)
		for fn := range s.inside {
			fn()
		}
	}()
	fatal(s.t, <-ready)
	fd := <-space
	for range insideThreads - 1 {
		go func() { // as above
			runtime.LockOSThread()
			ready <- unix.Setns(fd, unix.CLONE_NEWNET)
			for fn := range s.inside {
				fn()
			}
		}()
		fatal(s.t, <-ready)
	}
	_ = unix.Close(fd)
	s.t.Cleanup(func() { close(s.inside) })
	s.Hand(s.Static.Listeners)
}

// Hand listens as the listeners say and gives them to the gateway.
func (s *Stack) Hand(listeners []wire.Listener) {
	s.t.Helper()
	c, err := s.Connect("gateway.sock", IDs.Runtime())
	fatal(s.t, err)
	s.control = wire.New(c)
	s.t.Cleanup(func() { _ = s.control.Close() })
	if _, err := s.control.Greet(wire.GatewayProtocol, wire.GatewayVersion); err != nil {
		s.t.Fatalf("%v; the gateway says: %s", err, s.Gateway.Output())
	}
	for len(listeners) > 0 {
		part := listeners[:min(len(listeners), wire.MaxFiles)]
		listeners = listeners[len(part):]
		var files []*os.File
		for _, l := range part {
			var ln net.Listener
			s.Inside(func() { ln, err = plainTCP.Listen(context.Background(), "tcp", l.Address) })
			fatal(s.t, err)
			f, err := ln.(*net.TCPListener).File()
			fatal(s.t, err)
			_ = ln.Close()
			files = append(files, f)
		}
		fatal(s.t, s.control.Send(1, wire.VerbListen, wire.ListenRequest{Token: Token, Listeners: part}, files...))
		m, _, err := s.control.Recv()
		fatal(s.t, err)
		if m.Verb != wire.VerbOK {
			s.t.Fatalf("the gateway did not take the listeners: %s", m.Body)
		}
		for _, f := range files {
			_ = f.Close()
		}
	}
}

// Connect connects to a socket of ours as id.
func (s *Stack) Connect(name string, id uint32) (*net.UnixConn, error) {
	var c *net.UnixConn
	err := As(id, func() error {
		var err error
		c, err = net.DialUnix("unix", nil, &net.UnixAddr{Name: filepath.Join(s.Dir, name), Net: "unix"})
		return err
	})
	return c, err
}

// As runs fn on a thread that has become id, and drops the thread.
func As(id uint32, fn func() error) error {
	done := make(chan error)
	go func() {
		runtime.LockOSThread() // never unlocked: the runtime ends the thread with the goroutine
		for _, call := range []uintptr{unix.SYS_SETRESGID, unix.SYS_SETRESUID} {
			if _, _, e := unix.RawSyscall(call, uintptr(id), uintptr(id), uintptr(id)); e != 0 {
				done <- e
				return
			}
		}
		done <- fn()
	}()
	return <-done
}

// Inside runs fn in the runtime's network namespace.
func (s *Stack) Inside(fn func()) {
	done := make(chan struct{})
	s.inside <- func() { fn(); close(done) }
	<-done
}

// Dial connects from inside the runtime.
func (s *Stack) Dial(addr string) (net.Conn, error) {
	var c net.Conn
	var err error
	s.Inside(func() { c, err = net.DialTimeout("tcp", addr, 5*time.Second) })
	return c, err
}

// Address gives what the runtime's hosts file says of a name.
func (s *Stack) Address(name string, port int) string {
	for _, l := range s.Static.Hosts {
		if f := strings.Fields(l); f[1] == name {
			return net.JoinHostPort(f[0], fmt.Sprint(port))
		}
	}
	s.t.Fatalf("%s has no static address", name)
	return ""
}

// Await waits until cond holds.
func Await(t testing.TB, what string, cond func() bool) {
	t.Helper()
	for range 500 {
		if cond() {
			return
		}
		time.Sleep(10 * time.Millisecond)
	}
	t.Fatalf("in vain: %s", what)
}

// Echo serves an echo service on addr until the test ends.
func Echo(t testing.TB, addr string, greeting string) netip.AddrPort {
	t.Helper()
	return Serve(t, addr, func(c net.Conn) {
		_, _ = io.WriteString(c, greeting)
		_, _ = io.Copy(c, c)
	})
}

// Serve serves each connection on addr with fn until the test ends.
func Serve(t testing.TB, addr string, fn func(net.Conn)) netip.AddrPort {
	t.Helper()
	ln, err := net.Listen("tcp", addr)
	fatal(t, err)
	done := make(chan struct{})
	go func() {
		defer close(done)
		for {
			c, err := ln.Accept()
			if err != nil {
				return
			}
			go func() { // ends with its client
				fn(c)
				_ = c.Close()
			}()
		}
	}()
	t.Cleanup(func() { _ = ln.Close(); <-done })
	return ln.Addr().(*net.TCPAddr).AddrPort()
}
