package vm

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"time"
)

// pingPatience is how long one attempt to reach the guest may take while it
// restarts: what was sent to the host that goes down is lost.
const pingPatience = 3 * time.Second

// Reboot restarts the host as `systemctl reboot` does, on the same disk, and
// returns when the next one answers and systemd has started everything.
func (m *Machine) Reboot(ctx context.Context) error {
	was, err := m.bootID(ctx)
	if err != nil {
		return err
	}
	q, err := m.monitor(ctx)
	if err != nil {
		return err
	}
	// Machines are started with -no-reboot, so that a panic ends them.
	err = q.do("set-action", map[string]any{"reboot": "reset"})
	q.close()
	if err != nil {
		return err
	}
	if exit, err := m.Run(ctx, io.Discard, "systemctl", "--no-block", "reboot"); err != nil || exit != 0 {
		return fmt.Errorf("vm: systemctl reboot: exit %d: %w", exit, err)
	}
	ctx, cancel := context.WithTimeout(ctx, bootPatience)
	defer cancel()
	for {
		// A new connection each time: nothing of an answer that was cut off may
		// be taken for the next one's.
		_ = m.line.Close()
		if m.line, err = m.dial(ctx, "agent"); err != nil {
			return err
		}
		m.frames = bufio.NewReader(m.line)
		once, end := context.WithTimeout(ctx, pingPatience)
		is, err := m.bootID(once)
		end()
		if err == nil && is != was {
			break
		}
		select {
		case <-ctx.Done():
			return fmt.Errorf("vm: the host did not come back: %w\n%s", ctx.Err(), m.LastWords())
		case <-m.exited:
			return errors.New("vm: QEMU ended instead of starting again\n" + m.LastWords())
		case <-time.After(100 * time.Millisecond):
		}
	}
	if _, err := m.request(ctx, request{Op: "time", Unix: float64(time.Now().UnixMilli()) / 1000}, nil, nil); err != nil {
		return err
	}
	_, err = m.Run(ctx, io.Discard, "systemctl", "is-system-running", "--wait")
	return err
}

// bootID is the kernel's name for this boot.
func (m *Machine) bootID(ctx context.Context) (string, error) {
	var id string
	err := m.ask(ctx, request{Op: "ping"}, func(end json.RawMessage) error {
		var pong struct{ Boot string }
		if err := json.Unmarshal(end, &pong); err != nil {
			return fmt.Errorf("vm: ping: %w", err)
		}
		id = pong.Boot
		return nil
	})
	if err == nil && id == "" {
		err = errors.New("vm: the guest says no boot id")
	}
	return id, err
}
