package stage2

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"runtime"
	"strconv"
	"syscall"

	"golang.org/x/sys/unix"

	"bulkhead/internal/lookpath"
)

// Main runs stage 2. args is one number: the first descriptor that is stage
// 2's own, which is the plan; the status pipe follows. It returns only when it
// failed, with the exit code.
func Main(args []string) int {
	runtime.LockOSThread()
	if len(args) != 1 {
		fmt.Fprintln(os.Stderr, "bulkhead-shim stage2 is started by the cell engine only")
		return 2
	}
	first, err := strconv.Atoi(args[0])
	if err != nil || first < 0 {
		fmt.Fprintln(os.Stderr, "bulkhead-shim stage2: bad descriptor number")
		return 2
	}
	status := first + 1
	err = run(first, &status)
	_ = report(status, Report{Error: err.Error()})
	return 125
}

// run returns only when it failed. status follows the status pipe when an
// order's descriptors take its place.
func run(planFD int, status *int) error {
	// Nothing of ours may be left open in the container. The plan names its
	// descriptors; everything from the first of them on closes at exec.
	if err := unix.CloseRange(uint(planFD), ^uint(0)>>1&0x7fffffff, unix.CLOSE_RANGE_CLOEXEC); err != nil { // #nosec G115 -- checked above
		return fmt.Errorf("stage 2: close descriptors at exec: %w", err)
	}
	plan := os.NewFile(uintptr(planFD), "plan") // #nosec G115 -- checked above
	raw, err := io.ReadAll(plan)
	// Closed by hand: a finalizer would close whatever has this number by then.
	if err = errors.Join(err, plan.Close()); err != nil {
		return fmt.Errorf("stage 2: read the plan: %w", err)
	}
	p, err := parsePlan(raw)
	if err != nil {
		return err
	}
	unix.Umask(0o022)
	res, err := p.Profile.Apply()
	if err != nil {
		return err
	}
	if err := report(*status, Report{Result: res}); err != nil {
		return err
	}
	o, err := receive(status)
	if err != nil {
		return err
	}
	// As the container's own user: what it may not enter it shall not get.
	if err := unix.Chdir(o.Dir); err != nil {
		return fmt.Errorf("stage 2: working folder %s: %w", o.Dir, err)
	}
	path, err := lookpath.Find(o.Argv[0], o.Env)
	if err != nil {
		return err
	}
	if err := report(*status, Report{Result: res}); err != nil {
		return err
	}
	return fmt.Errorf("stage 2: run %s: %w", path, syscall.Exec(path, o.Argv, o.Env)) // #nosec G204 -- the Spec's command, confined
}

// maxFiles bounds the descriptors of an order; the kernel passes at most 253 at
// once (SCM_MAX_FD).
const maxFiles = 128

// receive waits for the order and takes its descriptors, which become 0, 1, 2
// and so on. When the starter goes away instead, this process ends.
func receive(status *int) (o Order, err error) {
	fd := *status
	buf, oob := make([]byte, 64<<10), make([]byte, unix.CmsgSpace(maxFiles*4))
	n, oobn, _, _, err := unix.Recvmsg(fd, buf, oob, unix.MSG_CMSG_CLOEXEC)
	if err != nil {
		return o, fmt.Errorf("stage 2: wait for the command: %w", err)
	}
	if n == 0 {
		os.Exit(0)
	}
	raw := buf[:n:n]
	for {
		n, err := unix.Read(fd, buf)
		if err != nil {
			return o, fmt.Errorf("stage 2: read the command: %w", err)
		}
		if n == 0 {
			break
		}
		raw = append(raw, buf[:n]...)
	}
	if err := json.Unmarshal(raw, &o); err != nil {
		return o, fmt.Errorf("stage 2: the order: %w", err)
	}
	if len(o.Argv) == 0 {
		return o, errors.New("stage 2: the order names no command")
	}
	msgs, err := unix.ParseSocketControlMessage(oob[:oobn])
	if err != nil {
		return o, fmt.Errorf("stage 2: the order's descriptors: %w", err)
	}
	var fds []int
	for i := range msgs {
		if msgs[i].Header.Type != unix.SCM_RIGHTS {
			continue
		}
		got, err := unix.ParseUnixRights(&msgs[i])
		if err != nil {
			return o, fmt.Errorf("stage 2: the order's descriptors: %w", err)
		}
		fds = append(fds, got...)
	}
	if len(fds) < 3 {
		return o, fmt.Errorf("stage 2: the order came with %d descriptors", len(fds))
	}
	// Out of the way first, so that none is written over before its turn.
	if *status, err = unix.FcntlInt(uintptr(fd), unix.F_DUPFD_CLOEXEC, len(fds)); err != nil { // #nosec G115 -- a descriptor
		return o, fmt.Errorf("stage 2: status: %w", err)
	}
	for i, from := range fds {
		if fds[i], err = unix.FcntlInt(uintptr(from), unix.F_DUPFD_CLOEXEC, len(fds)); err != nil { // #nosec G115 -- a descriptor
			return o, fmt.Errorf("stage 2: descriptor %d: %w", i, err)
		}
	}
	for i, from := range fds {
		if err := unix.Dup3(from, i, 0); err != nil {
			return o, fmt.Errorf("stage 2: descriptor %d: %w", i, err)
		}
	}
	if fd >= len(fds) {
		return o, unix.Close(fd) // or its end would not be seen before exec
	}
	return o, nil
}

func report(fd int, r Report) error {
	raw, err := json.Marshal(r)
	if err != nil {
		return err
	}
	if _, err := unix.Write(fd, append(raw, '\n')); err != nil {
		return fmt.Errorf("stage 2: report: %w", err)
	}
	return nil
}
