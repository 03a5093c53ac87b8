package launcher

import (
	"time"

	"bulkhead/internal/engine"
)

// The launcher protocol: warden -> launcher, over layout.Agent.LauncherSocket,
// which only root can reach. Frames as in package wire; one request per
// connection.
const (
	Protocol = "launcher"
	Version  = 1
)

// Verbs of the launcher protocol. Every request is answered by verbOK or
// wire.VerbError, watch by a stream of verbEvent.
const (
	verbLaunch   = "launch"   // [LaunchRequest] with descriptors -> [Container] with a pidfd; then [cell.Exit] if asked
	verbWait     = "wait"     // [named] -> [cell.Exit]
	verbStop     = "stop"     // [named] -> [cell.Exit]
	verbKill     = "kill"     // [named] -> [cell.Exit]
	verbList     = "list"     // -> verbContainer per container, with a pidfd when running; then verbOK
	verbWatch    = "watch"    // -> verbEvent until either side closes
	verbCode     = "code"     // [CodeConfig] with the listening socket of layout.Agent.ProcSocket -> verbOK; replaces the former
	verbRest     = "rest"     // -> verbOK; gives up what is kept ready, until the next launch
	verbShutdown = "shutdown" // -> verbOK once every container is dead

	verbOK        = "ok"
	verbContainer = "container"
	verbEvent     = "event"
)

// named is the body of wait, stop and kill.
type named struct {
	Name        string `json:"name"`
	GraceMillis int64  `json:"graceMillis,omitempty"`
}

// LaunchRequest starts one container. It is the body of the launch verb.
type LaunchRequest struct {
	Spec engine.Spec `json:"spec"`
	// Shim configures Spec.Init. Its control socket is made by the launcher at
	// layout.Agent.ShimSocket(Spec.Name). PassFiles is filled in.
	Shim *engine.ShimConfig `json:"shim,omitempty"`
	// Stdio says that the first three files are the container's stdin, stdout
	// and stderr. Otherwise stdin is /dev/null and the launcher writes the
	// output to layout.Agent.Logs()/<name>.log.
	Stdio bool `json:"stdio,omitempty"`
	// LogBytes is how much that log may hold, its older files included; zero is
	// the launcher's default.
	LogBytes int64 `json:"logBytes,omitempty"`
	// Fresh starts a new process even when a prepared one waits: for those who
	// measure. A prepared cgroup and mount namespace may still be used.
	Fresh bool `json:"fresh,omitempty"`
	// Wait asks for a second answer on the same connection, the [cell.Exit]: see
	// [Client.Run]. The first is then short, a name with the pidfd, and
	// watchers are not told.
	Wait bool `json:"wait,omitempty"`
}

// State of a container.
type State string

// The states.
const (
	StateRunning State = "running"
	StateExited  State = "exited"
)

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

// status is what the launcher writes to its starter once, before it serves.
type status struct {
	Error string `json:"error,omitempty"`
}

// startPatience bounds how long a launcher may take until it answers.
const startPatience = 20 * time.Second
