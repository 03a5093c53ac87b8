package main

import (
	"context"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"bulkhead/internal/client"
	"bulkhead/internal/wire"
)

// startTime is how long a warden may take from start to its first greeting: it
// reads the ledger and adopts what runs.
const startTime = 30 * time.Second

// ensureWarden starts the warden when none runs, and returns once it greets.
func (a *app) ensureWarden(ctx context.Context) error {
	_, err := a.client().Ping(ctx)
	if !client.NotRunning(err) {
		return err
	}
	if os.Geteuid() != 0 {
		return &client.Error{What: "the warden is not running, and only root can start it", Mend: "run the command with sudo", Exit: wire.ExitRefused}
	}
	self, err := os.Executable()
	if err != nil {
		return noStart(err, "run bulkhead-warden yourself")
	}
	if self, err = filepath.EvalSymlinks(self); err != nil {
		return noStart(err, "run bulkhead-warden yourself")
	}
	program := filepath.Join(filepath.Dir(self), "bulkhead-warden")
	if _, err := os.Stat(program); err != nil {
		return noStart(err, "install bulkhead-warden beside "+self)
	}
	logPath := a.host.WardenLog()
	if err := os.MkdirAll(filepath.Dir(logPath), 0o700); err != nil {
		return noStart(err, "make "+filepath.Dir(logPath)+" writable for root")
	}
	logFile, err := os.OpenFile(logPath, os.O_WRONLY|os.O_CREATE|os.O_APPEND, 0o600) // #nosec G304 -- layout's own path
	if err != nil {
		return noStart(err, "make "+logPath+" writable for root")
	}
	defer func() { _ = logFile.Close() }()
	a.progress(wire.Progress{Step: "starting the warden (log: " + logPath + ")"})
	return a.awaitWarden(ctx, logPath, func() (int, error) {
		cmd := exec.Command(program) // #nosec G204 -- found beside this program; it outlives the command, so no context
		cmd.Stdout, cmd.Stderr = logFile, logFile
		cmd.Dir = "/"
		// A session of its own: closing the operator's terminal does not end it.
		cmd.SysProcAttr = &syscall.SysProcAttr{Setsid: true}
		if err := cmd.Start(); err != nil {
			return 0, noStart(err, "see whether "+program+" can be executed")
		}
		return cmd.Process.Pid, nil
	})
}

// awaitWarden starts a warden and returns once one greets, be it that one or
// another that was started at the same time.
func (a *app) awaitWarden(ctx context.Context, logPath string, start func() (int, error)) error {
	ctx, cancel := context.WithTimeout(ctx, startTime)
	defer cancel()
	pid, err := start()
	if err != nil {
		return err
	}
	for {
		_, err := a.client().Ping(ctx)
		if err == nil || !client.NotRunning(err) {
			return err
		}
		var ws unix.WaitStatus
		if got, _ := unix.Wait4(pid, &ws, unix.WNOHANG, nil); got == pid {
			if ws.ExitStatus() != wire.ExitBusy {
				return noStart(fmt.Errorf("it ended at once with code %d; its last words:\n%s", ws.ExitStatus(), lastLines(logPath, 5)), "see "+logPath)
			}
			// Another one held the host and does not greet: it is ending, or hangs.
			if pid, err = start(); err != nil {
				return err
			}
		}
		select {
		case <-ctx.Done():
			return noStart(fmt.Errorf("none listened on %s within %s", a.socket, startTime), "see "+logPath+"; `fuser "+a.host.WardenLock()+"` shows who holds the host")
		case <-time.After(10 * time.Millisecond):
		}
	}
}

func noStart(err error, mend string) error {
	return &client.Error{What: "the warden cannot be started: " + err.Error(), Mend: mend, Exit: wire.ExitNoWarden, Err: err}
}

// lastLines gives the end of a log, indented.
func lastLines(path string, n int) string {
	f, err := os.Open(path) // #nosec G304 -- layout's own path
	if err != nil {
		return "  " + err.Error()
	}
	defer func() { _ = f.Close() }()
	const most = 8 << 10
	if st, err := f.Stat(); err == nil && st.Size() > most {
		if _, err := f.Seek(-most, io.SeekEnd); err != nil {
			return "  " + err.Error()
		}
	}
	data, err := io.ReadAll(io.LimitReader(f, most))
	if err != nil {
		return "  " + err.Error()
	}
	lines := strings.Split(strings.TrimRight(string(data), "\n"), "\n")
	return "  " + strings.Join(lines[max(0, len(lines)-n):], "\n  ")
}
