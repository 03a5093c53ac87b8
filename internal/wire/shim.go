package wire

// The shim protocol: warden -> shim of a container, over
// layout.Agent.ShimSocket. Only root can reach that socket.
const (
	ShimProtocol = "shim"
	ShimVersion  = 1
)

// Verbs of the shim protocol.
const (
	// VerbExec starts another process in the container: same Landlock domain,
	// seccomp filter, cgroup and ids as the command. Request [ExecRequest];
	// first answer "started" [ExecStarted] with descriptors: with a terminal
	// the pty's master; without, stdin's write end, stdout's and stderr's read
	// ends. Last answer "exited" [ExecExited]. Closing the connection before
	// that kills the process's whole session. To a shim that is Relayed the
	// other ends come with the request: one socket for a terminal, which the
	// shim relays; without, stdin's read end and the write ends. "started" then
	// has no descriptors.
	VerbExec = "exec"
	// VerbAttach joins the terminal of the container's command; in a session it
	// starts that command when it does not run. Request [AttachRequest]; first
	// answer "started" [ExecStarted] with one socket, for what is seen and what is
	// typed; to a shim that is Relayed the other end of it comes with the request.
	// Last answer "exited" [ExecExited] when the command ends. Closing the
	// connection before that leaves the command as it is.
	VerbAttach = "attach"
	// VerbResize changes the terminal of an exec or an attach on the same
	// connection.
	VerbResize = "resize"
	// VerbSignal sends a signal to the exec on the same connection.
	VerbSignal = "signal"
	// VerbConnect asks for a connection to a listed port of the container's own
	// loopback. Request [ConnectRequest]; answer VerbConnected with one
	// connected TCP socket. To a shim that is Relayed a unix socket comes with
	// the request, which it relays; the answer then has none.
	VerbConnect = "connect"
	// VerbState asks for [ShimState]. Request [StateRequest].
	VerbState = "state"
	// VerbStop ends the command: SIGTERM, and SIGKILL after StopRequest.Grace.
	VerbStop = "stop"

	VerbStarted = "started"
	VerbExited  = "exited"
	VerbOK      = "ok"
	VerbError   = "error" // body [Failure]
)

// Failure is the body of every "error" answer.
type Failure struct {
	Message string `json:"message"`
	Mend    string `json:"mend,omitempty"`
	Exit    int    `json:"exit,omitempty"` // the exit code that the CLI should end with
}

// ExecRequest describes a process to start in a container.
type ExecRequest struct {
	Argv     []string `json:"argv"`
	Env      []string `json:"env,omitempty"` // added to the container's
	Dir      string   `json:"dir,omitempty"`
	Terminal bool     `json:"terminal,omitempty"`
	Rows     uint16   `json:"rows,omitempty"`
	Cols     uint16   `json:"cols,omitempty"`
}

// AttachRequest is the terminal of an operator. Env is added to the container's
// when the command is started by it.
type AttachRequest struct {
	Env  []string `json:"env,omitempty"`
	Rows uint16   `json:"rows,omitempty"`
	Cols uint16   `json:"cols,omitempty"`
}

// ExecStarted is the first answer; PID is inside the container.
type ExecStarted struct {
	PID int `json:"pid"`
}

// ExecExited is the last answer. A signal gives Code 128+signal.
type ExecExited struct {
	Code   int    `json:"code"`
	Signal string `json:"signal,omitempty"`
}

// Resize is a terminal size in cells.
type Resize struct {
	Rows uint16 `json:"rows"`
	Cols uint16 `json:"cols"`
}

// Signal is a signal number.
type Signal struct {
	Number int `json:"number"`
}

// StopRequest bounds how long a command may take to end.
type StopRequest struct {
	GraceMillis int64 `json:"graceMillis"`
}

// StateRequest says how long the answer may be kept back until the command is
// ready: a second at most, not at all when it is 0. A shim of an earlier build
// answers at once.
type StateRequest struct {
	WaitMillis int64 `json:"waitMillis,omitempty"`
}

// ShimState is what a shim knows of its command.
type ShimState struct {
	Build     string `json:"build"`
	Ready     bool   `json:"ready"`             // listeners handed over (runtime) and command started
	PID       int    `json:"pid"`               // inside; 0 when not running
	Listeners int    `json:"listeners"`         // how many are with the gateway
	Landlock  int    `json:"landlock"`          // ABI in force, 0: none
	Waiting   string `json:"waiting,omitempty"` // why it is not ready
}
