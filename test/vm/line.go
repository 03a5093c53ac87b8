package vm

import (
	"bytes"
	"context"
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"time"
)

// request is one line to guest/agent.py, which describes the protocol.
type request struct {
	Op   string   `json:"op"`
	Dir  string   `json:"dir,omitempty"`
	Argv []string `json:"argv,omitempty"`
	N    int      `json:"n,omitempty"`
	Unix float64  `json:"unix,omitempty"`
}

// maxFrame is above what the agent sends at once (64 KiB).
const maxFrame = 1 << 20

// request sends q and then body, passes the answer's output to out, and
// returns the exit code of what the guest ran.
func (m *Machine) request(ctx context.Context, q request, body []byte, out io.Writer) (exit int, err error) {
	err = m.exchange(ctx, q, body, out, func(end json.RawMessage) error {
		var said struct {
			Exit  int    `json:"exit"`
			Error string `json:"error"`
		}
		if err := json.Unmarshal(end, &said); err != nil {
			return m.broken(ctx, q, err)
		}
		if said.Error != "" {
			return fmt.Errorf("vm: %s in the guest: %s", q.Op, said.Error)
		}
		exit = said.Exit
		return nil
	})
	return exit, err
}

// ask sends q, which has no output, and gives the end of the answer to take.
func (m *Machine) ask(ctx context.Context, q request, take func(end json.RawMessage) error) error {
	return m.exchange(ctx, q, nil, io.Discard, take)
}

func (m *Machine) exchange(ctx context.Context, q request, body []byte, out io.Writer, take func(end json.RawMessage) error) error {
	// The guest's agent cannot be interrupted, so a request that is given up
	// spoils the line: everything after it fails as well.
	stop := context.AfterFunc(ctx, func() { _ = m.line.SetDeadline(time.Unix(1, 0)) })
	defer stop()
	head, err := json.Marshal(q)
	if err != nil {
		return fmt.Errorf("vm: %w", err)
	}
	if _, err := m.line.Write(append(append(head, '\n'), body...)); err != nil {
		return m.broken(ctx, q, err)
	}
	for {
		kind, b, err := m.frame()
		if err != nil {
			return m.broken(ctx, q, err)
		}
		if kind == 'x' {
			return take(b)
		}
		if _, err := out.Write(b); err != nil {
			return m.broken(ctx, q, err)
		}
	}
}

func (m *Machine) broken(ctx context.Context, q request, err error) error {
	if ctx.Err() != nil {
		err = ctx.Err()
	}
	return fmt.Errorf("vm: %s %q: the line to the guest broke: %w\n%s", q.Op, q.Argv, err, m.LastWords())
}

func (m *Machine) frame() (kind byte, body []byte, err error) {
	var head [5]byte
	if _, err := io.ReadFull(m.frames, head[:]); err != nil {
		return 0, nil, err
	}
	n := binary.BigEndian.Uint32(head[1:])
	if n > maxFrame {
		return 0, nil, fmt.Errorf("a frame of %d bytes", n)
	}
	body = make([]byte, n)
	_, err = io.ReadFull(m.frames, body)
	return head[0], body, err
}

// ping waits until the guest's agent answers.
func (m *Machine) ping(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, bootPatience)
	defer cancel()
	_, err := m.request(ctx, request{Op: "ping"}, nil, io.Discard)
	return err
}

// Run runs a command as root in the guest, passes what it prints (both
// streams, as they come) to out, and returns its exit code.
func (m *Machine) Run(ctx context.Context, out io.Writer, argv ...string) (int, error) {
	return m.request(ctx, request{Op: "run", Dir: "/root", Argv: argv}, nil, out)
}

// Put copies what is in the folder from to the guest's folder to.
func (m *Machine) Put(ctx context.Context, from, to string) error {
	tar, err := exec.CommandContext(ctx, "tar", "-C", from, "--numeric-owner", "--owner=0", "--group=0", "-cf", "-", ".").Output() // #nosec G204 -- a test's own folder
	if err != nil {
		return fmt.Errorf("vm: pack %s: %w", from, err)
	}
	exit, err := m.request(ctx, request{Op: "put", Dir: to, N: len(tar)}, tar, io.Discard)
	if err == nil && exit != 0 {
		err = fmt.Errorf("vm: unpack in the guest's %s: exit %d", to, exit)
	}
	return err
}

// Get copies what is in the guest's folder from to the folder to.
func (m *Machine) Get(ctx context.Context, from, to string) error {
	if err := os.MkdirAll(to, 0o750); err != nil {
		return fmt.Errorf("vm: %w", err)
	}
	var tar bytes.Buffer
	exit, err := m.request(ctx, request{Op: "get", Dir: from}, nil, &tar)
	if err != nil {
		return err
	}
	if exit != 0 {
		return fmt.Errorf("vm: pack the guest's %s: exit %d", from, exit)
	}
	unpack := exec.CommandContext(ctx, "tar", "--no-same-owner", "-xf", "-", "-C", to) // #nosec G204 -- a test's own folder
	unpack.Stdin = &tar
	if said, err := unpack.CombinedOutput(); err != nil {
		return errors.Join(fmt.Errorf("vm: unpack to %s: %s", to, said), err)
	}
	return nil
}
