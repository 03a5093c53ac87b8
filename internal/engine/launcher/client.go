// Package launcher is under construction: signatures first.
package launcher

import (
	"context"
	"errors"
	"os"
	"time"

	"bulkhead/internal/engine"
	"bulkhead/internal/engine/cell"
	"bulkhead/internal/layout"
)

// Config is one agent's launcher.
type Config struct {
	Host    layout.Host  // where everything lies
	Place   layout.Agent // this agent; State and Run with Control and Logs exist already, owned by root
	Account uint32       // the bare account's user and group id
	// Programs is the folder of one build (layout.Host.Programs); the launcher
	// is its bulkhead-shim. Mounted read-only, as is Host.Images().
	Programs string
	Build    string
	// CgroupRoot is cgroup.RootName; tests use names of their own.
	CgroupRoot string
}

// LaunchRequest starts one container. It is the body of the start verb.
type LaunchRequest struct {
	Spec engine.Spec `json:"spec"`
	// Shim configures Spec.Init. Its control socket is made by the launcher at
	// layout.Agent.ShimSocket(Spec.Name).
	Shim *engine.ShimConfig `json:"shim,omitempty"`
	// Stdio says that the first three files are the container's stdin, stdout
	// and stderr. Otherwise stdin is /dev/null and the launcher writes the
	// output to layout.Agent.Logs()/<name>.log.
	Stdio bool `json:"stdio,omitempty"`
}

// State of a container.
type State string

// The states.
const (
	StateRunning State = "running"
	StateExited  State = "exited"
)

// Container is what the launcher knows of one container. The record of one
// that ended stays until the name is used again.
type Container struct {
	Name    string      `json:"name"`
	Role    engine.Role `json:"role"`
	State   State       `json:"state"`
	Since   time.Time   `json:"since"` // when State began
	Spec    engine.Spec `json:"spec"`
	Report  cell.Report `json:"report"`
	Start   uint64      `json:"start"` // start time, field 22 of /proc/PID/stat
	Exit    *cell.Exit  `json:"exit,omitempty"`
	HostPID int         `json:"-"` // in the client's own PID namespace, from the pidfd; 0 when exited
	PIDFD   *os.File    `json:"-"` // of the first process; nil when exited. The caller closes it.
}

// EventKind says what happened.
type EventKind string

// The kinds of event.
const (
	EventStarted EventKind = "started"
	EventExited  EventKind = "exited"
)

// Event is one change. Container.PIDFD is nil in events.
type Event struct {
	Kind      EventKind `json:"kind"`
	Container Container `json:"container"`
}

// ErrGone means that the launcher does not answer any more: it ended, and its
// PID namespace took every process of the agent along.
var ErrGone = errors.New("launcher: gone")

// Client speaks to one launcher. It is safe for concurrent use; each call uses
// a connection of its own.
type Client struct {
	socket string
	pid    int
	pidfd  *os.File
	exited chan struct{} // closed when the launcher has ended (and was reaped, when this process started it)
}

// Start makes the account cell of one agent and returns once its launcher
// answers. The launcher outlives the caller.
func Start(ctx context.Context, cfg Config) (*Client, error) { return nil, errors.ErrUnsupported }

// Connect finds a running launcher. It checks that the peer is root and takes
// a pidfd of it. An error that is [ErrGone] means that nobody listens.
func Connect(ctx context.Context, socket string) (*Client, error) { return nil, errors.ErrUnsupported }

// PID is the launcher's process id as this process sees it: PID 1 of the account cell.
func (c *Client) PID() int { return c.pid }

// PIDFD refers to the launcher. The client closes it.
func (c *Client) PIDFD() *os.File { return c.pidfd }

// Exited is closed when the launcher has ended.
func (c *Client) Exited() <-chan struct{} { return c.exited }

// Launch starts a container and returns when its command runs (exec has
// happened), with its pidfd. Files stay open for the caller.
func (c *Client) Launch(ctx context.Context, r LaunchRequest, files ...*os.File) (Container, error) {
	return Container{}, errors.ErrUnsupported
}

// Wait blocks until the container has ended.
func (c *Client) Wait(ctx context.Context, name string) (cell.Exit, error) {
	return cell.Exit{}, errors.ErrUnsupported
}

// Stop asks the container to end (SIGTERM to its first process; the shim
// passes it on), kills its cgroup after grace, and returns how it ended.
func (c *Client) Stop(ctx context.Context, name string, grace time.Duration) (cell.Exit, error) {
	return cell.Exit{}, errors.ErrUnsupported
}

// Kill ends every process of the container at once.
func (c *Client) Kill(ctx context.Context, name string) (cell.Exit, error) {
	return cell.Exit{}, errors.ErrUnsupported
}

// List gives every container, running or ended. The caller closes the pidfds.
func (c *Client) List(ctx context.Context) ([]Container, error) { return nil, errors.ErrUnsupported }

// Watch streams events until ctx ends, the launcher ends, or f fails. It first
// reports every running container as started, so nothing falls between List
// and Watch.
func (c *Client) Watch(ctx context.Context, f func(Event) error) error { return errors.ErrUnsupported }

// Shutdown kills every container and ends the launcher.
func (c *Client) Shutdown(ctx context.Context) error { return errors.ErrUnsupported }

// Close lets go of the launcher, which goes on.
func (c *Client) Close() error { return errors.ErrUnsupported }
