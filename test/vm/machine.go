package vm

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"time"
)

// Machine is one running host. Its methods must not be called concurrently:
// there is one line to the guest, and it takes one request at a time.
type Machine struct {
	image  *Image
	dir    string // sockets, console.log and qemu.log; removed by Close
	cmd    *exec.Cmd
	exited chan struct{} // closed when QEMU has ended and was waited for
	line   net.Conn      // to the guest's agent
	frames *bufio.Reader // of line
	lock   *os.File      // holds the lock that makes it the only one
}

// bootPatience bounds a cold boot; 11 s on two cores without KVM, when nothing
// else runs.
const bootPatience = 3 * time.Minute

// settled waits until systemd has started everything, and says what failed.
const settled = `systemctl is-system-running --wait; systemctl --failed --no-legend --plain`

// Boot gives a fresh host. It saves the state of one first when there is none.
// It waits while another process of this user has one.
func Boot(ctx context.Context, image *Image) (*Machine, error) {
	lock, err := image.lock(ctx)
	if err != nil {
		return nil, err
	}
	m, err := boot(ctx, image)
	if err != nil {
		return nil, errors.Join(err, lock.Close())
	}
	m.lock = lock
	return m, nil
}

func boot(ctx context.Context, image *Image) (*Machine, error) {
	if err := image.save(ctx); err != nil {
		return nil, fmt.Errorf("vm: save a booted host: %w", err)
	}
	m, err := start(ctx, image, "file="+image.savedDisk()+",format=qcow2,snapshot=on", "-incoming", "exec:cat '"+image.savedMemory()+"'")
	if err != nil {
		return nil, err
	}
	if err := m.resume(ctx); err != nil {
		return nil, m.failed(fmt.Errorf("vm: restore the saved host: %w", err))
	}
	return m, nil
}

// resume waits until the saved state is loaded, lets it run and sets its clock.
func (m *Machine) resume(ctx context.Context) error {
	q, err := m.monitor(ctx)
	if err != nil {
		return err
	}
	defer q.close()
	if err := q.until("query-status", "paused"); err != nil {
		return err
	}
	if err := q.do("cont", nil); err != nil {
		return err
	}
	if err := m.ping(ctx); err != nil {
		return err
	}
	_, err = m.request(ctx, request{Op: "time", Unix: float64(time.Now().UnixMilli()) / 1000}, nil, nil)
	return err
}

// start starts QEMU and connects to it. disk is a value of -drive.
func start(ctx context.Context, image *Image, disk string, more ...string) (*Machine, error) {
	dir, err := os.MkdirTemp("", "bulkhead-vm-")
	if err != nil {
		return nil, fmt.Errorf("vm: %w", err)
	}
	m := &Machine{image: image, dir: dir, exited: make(chan struct{})}
	args := append(image.hardware(), "-kernel", filepath.Join(image.Dir, "vmlinuz"), "-initrd", filepath.Join(image.Dir, "initrd"),
		"-append", kernelLine, "-drive", disk+",if=virtio,cache=unsafe",
		"-serial", "file:"+m.path("console.log"),
		"-chardev", "socket,id=agent,server=on,wait=off,path="+m.path("agent"),
		"-qmp", "unix:"+m.path("monitor")+",server=on,wait=off")
	log, err := os.Create(m.path("qemu.log"))
	if err != nil {
		return nil, errors.Join(err, os.RemoveAll(dir))
	}
	defer func() { _ = log.Close() }()
	// Not bound to ctx: Close ends it, after the guest's last words were read.
	m.cmd = exec.Command(image.qemu[0], append(append(image.qemu[1:len(image.qemu):len(image.qemu)], args...), more...)...) // #nosec G204 -- the project's own script chose it
	m.cmd.Env = append(os.Environ(), "TMPDIR="+dir)                                                                         // where snapshot=on keeps what is written
	m.cmd.Stdout, m.cmd.Stderr = log, log
	// A test that is killed must not leave two busy cores behind. (The signal
	// comes with the end of the thread that forks; Go's threads stay.)
	m.cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	if err := m.cmd.Start(); err != nil {
		return nil, errors.Join(fmt.Errorf("vm: start QEMU: %w", err), os.RemoveAll(dir))
	}
	go func() { // ends with QEMU; Close waits for it
		_ = m.cmd.Wait()
		close(m.exited)
	}()
	if m.line, err = m.dial(ctx, "agent"); err != nil {
		return nil, m.failed(err)
	}
	m.frames = bufio.NewReader(m.line)
	return m, nil
}

func (m *Machine) path(name string) string { return filepath.Join(m.dir, name) }

// dial connects to one of QEMU's sockets, which appear a moment after it starts.
func (m *Machine) dial(ctx context.Context, name string) (net.Conn, error) {
	tick := time.NewTicker(10 * time.Millisecond)
	defer tick.Stop()
	for {
		c, err := (&net.Dialer{}).DialContext(ctx, "unix", m.path(name))
		if err == nil {
			return c, nil
		}
		select {
		case <-m.exited:
			return nil, errors.New("vm: QEMU ended at its start")
		case <-ctx.Done():
			return nil, fmt.Errorf("vm: QEMU's %s socket: %w", name, ctx.Err())
		case <-tick.C:
		}
	}
}

// failed closes the machine and adds what it said last.
func (m *Machine) failed(err error) error {
	last := m.LastWords()
	return errors.Join(fmt.Errorf("%w\n%s", err, last), m.Close())
}

// LastWords is the end of QEMU's log and of the host's console.
func (m *Machine) LastWords() string {
	var b strings.Builder
	for _, name := range []string{"qemu.log", "console.log"} {
		raw, err := os.ReadFile(m.path(name))
		if err != nil || len(raw) == 0 {
			continue
		}
		fmt.Fprintf(&b, "--- the end of %s\n%s\n", name, raw[max(0, len(raw)-2000):])
	}
	return b.String()
}

// Close ends the host at once and forgets everything that was written in it.
func (m *Machine) Close() error {
	if m.line != nil {
		_ = m.line.Close()
	}
	_ = m.cmd.Process.Kill()
	<-m.exited
	err := os.RemoveAll(m.dir)
	if m.lock != nil {
		err = errors.Join(err, m.lock.Close())
	}
	return err
}

// monitor is a connection to QEMU's machine protocol (qemu-qmp-ref(7)).
type monitor struct {
	conn net.Conn
	in   *json.Decoder
}

func (m *Machine) monitor(ctx context.Context) (*monitor, error) {
	c, err := m.dial(ctx, "monitor")
	if err != nil {
		return nil, err
	}
	if deadline, ok := ctx.Deadline(); ok {
		_ = c.SetDeadline(deadline)
	}
	q := &monitor{conn: c, in: json.NewDecoder(c)}
	var greeting json.RawMessage
	if err := q.in.Decode(&greeting); err != nil {
		return nil, errors.Join(fmt.Errorf("vm: QEMU's greeting: %w", err), c.Close())
	}
	if err := q.do("qmp_capabilities", nil); err != nil {
		return nil, errors.Join(err, c.Close())
	}
	return q, nil
}

func (q *monitor) close() { _ = q.conn.Close() }

// do runs a command and returns its status field, when it has one, in status.
func (q *monitor) do(command string, arguments map[string]any) error {
	_, err := q.ask(command, arguments)
	return err
}

func (q *monitor) ask(command string, arguments map[string]any) (status string, err error) {
	ask := map[string]any{"execute": command}
	if arguments != nil {
		ask["arguments"] = arguments
	}
	if err := json.NewEncoder(q.conn).Encode(ask); err != nil {
		return "", fmt.Errorf("vm: QEMU %s: %w", command, err)
	}
	for {
		var answer struct {
			Event  string `json:"event"`
			Return struct {
				Status string `json:"status"`
			} `json:"return"`
			Error *struct {
				Desc string `json:"desc"`
			} `json:"error"`
		}
		if err := q.in.Decode(&answer); err != nil {
			return "", fmt.Errorf("vm: QEMU %s: %w", command, err)
		}
		if answer.Event != "" {
			continue
		}
		if answer.Error != nil {
			return "", fmt.Errorf("vm: QEMU %s: %s", command, answer.Error.Desc)
		}
		return answer.Return.Status, nil
	}
}

// until asks until the status is want.
func (q *monitor) until(command, want string) error {
	for {
		got, err := q.ask(command, nil)
		if err != nil {
			return err
		}
		switch got {
		case want:
			return nil
		case "failed", "cancelled", "internal-error":
			return fmt.Errorf("vm: QEMU %s: %s", command, got)
		}
		time.Sleep(20 * time.Millisecond)
	}
}
