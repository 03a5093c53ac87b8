// Package launcher keeps one agent's processes: it is the account cell.
//
// A launcher is PID 1 of namespaces that root made for the agent (mount, PID,
// IPC, UTS, and a network namespace with loopback only), root itself, and
// small. It is the parent and reaper of the agent's containers and writes what
// they print to logs that only root can touch. It outlives the warden, which
// finds it again by its socket ([Connect]); when it dies, the kernel ends
// every process of its PID namespace, so nothing of an agent runs unseen.
//
// # What the account cell shows
//
// A fresh root, read-only: /usr, /bin, /sbin and /lib* of the host, a minimal
// /etc, new /proc (processes of others invisible), the six harmless devices, a
// tmpfs /tmp, this agent's State and Run folders, the image store and the
// programs (read-only, nosuid, nodev), and the folders that the manifest
// mounts. Other agents, the host's sockets, D-Bus, cron are not there. The
// control groups lie under /.launcher, which only root can enter.
//
// # Logs
//
// <Logs>/<container>.log, one line per line printed, in the form of the
// Kubernetes CRI: RFC 3339 time with nanoseconds, "stdout" or "stderr", "F"
// (the end of a line) or "P" (a part of one), text. Rotated at 10 MiB to .1
// and .2; root-owned, mode 0600. Containers write to pipes and cannot
// truncate anything.
package launcher

import (
	"encoding/json"
	"fmt"
	"io"
	"os"
	"runtime"
	"runtime/debug"

	"golang.org/x/sys/unix"

	"bulkhead/internal/confine"
	"bulkhead/internal/engine/cell"
	"bulkhead/internal/layout"
)

// Config is one agent's launcher.
type Config struct {
	Host    layout.Host  `json:"host"`    // where everything lies
	Place   layout.Agent `json:"place"`   // this agent; State, Run, Control and Logs exist already, owned by root
	Account uint32       `json:"account"` // the bare account's user and group id
	// Programs is the folder of one build (layout.Host.Programs); the launcher
	// is its bulkhead-shim. Mounted read-only, as is Host.Images().
	Programs string `json:"programs"`
	Build    string `json:"build"`
	// CgroupRoot is cgroup.RootName; tests use names of their own.
	CgroupRoot string `json:"cgroupRoot"`
	// Ready is how many one-off containers are kept prepared, confined and
	// waiting for their command; 0 is the default of 2, below 0 none (they are
	// then made fresh, from a seat).
	Ready int `json:"ready,omitempty"`
	// Ptrace lets processes of the cell trace those of their own user
	// namespace: gVisor's systrap works by it.
	Ptrace bool `json:"ptrace,omitempty"`
	// Sources are more host paths that containers of this agent may have
	// mounted or use as their root: those of the manifest. A path that is added
	// later needs a new launcher.
	Sources []string `json:"sources,omitempty"`
}

// Descriptors of a launcher at its start.
const (
	configFD = 3
	statusFD = 4
	bareFD   = 5
)

// Main is "bulkhead-shim launcher". It returns the exit code.
func Main() int {
	// The main thread stays with this goroutine, so that no thread which is
	// thrown away (cell.Start) is ever the one that /proc/self shows.
	runtime.LockOSThread()
	debug.SetGCPercent(startGarbage)
	unix.CloseOnExec(configFD)
	unix.CloseOnExec(statusFD)
	unix.CloseOnExec(bareFD)
	out := os.NewFile(statusFD, "status")
	s, err := begin()
	st := status{}
	if err != nil {
		st.Error = err.Error()
	}
	raw, merr := json.Marshal(st)
	if merr == nil {
		_, merr = out.Write(append(raw, '\n'))
	}
	_ = out.Close()
	if err != nil || merr != nil {
		fmt.Fprintln(os.Stderr, "bulkhead launcher:", err)
		return 1
	}
	// Not here: a goroutine that is bound to a thread is woken through another.
	served := make(chan error)
	go func() { served <- s.serve() }()
	if err := <-served; err != nil {
		fmt.Fprintln(os.Stderr, "bulkhead launcher:", err)
		return 1
	}
	return 0
}

// begin reads the configuration, makes the account cell and listens.
func begin() (*server, error) {
	if os.Getpid() != 1 {
		return nil, fmt.Errorf("launcher: process %d is not PID 1 of a PID namespace: the launcher is started by the warden only", os.Getpid())
	}
	raw, err := io.ReadAll(os.NewFile(configFD, "config"))
	if err != nil {
		return nil, fmt.Errorf("launcher: read the configuration: %w", err)
	}
	var cfg Config
	if err := json.Unmarshal(raw, &cfg); err != nil {
		return nil, fmt.Errorf("launcher: configuration: %w", err)
	}
	if err := makeCell(&cfg); err != nil {
		return nil, err
	}
	// Before anything can run here: every process of the cell inherits it.
	if err := confine.ConfineCell(cfg.Ptrace); err != nil {
		return nil, err
	}
	return newServer(cfg, cell.TakeBare(os.NewFile(bareFD, "bare")))
}
