package wire

import "time"

// The code protocol: gateway -> its agent's launcher, over
// layout.Agent.ProcSocket. The launcher knows the agent by the socket, checks
// the peer's id, and decides by itself in what a piece of code runs: a gateway
// says which language, which code and for how long, and nothing else. No
// descriptor of a gateway's is taken.
//
// One connection carries one piece of code at a time, and any number after each
// other. When it closes, what runs is killed.
const (
	CodeProtocol = "code"
	CodeVersion  = 1
)

// Verbs of the code protocol. The answer to VerbRunCode is VerbStarted
// [CodeStarted] with two descriptors, stdout's and stderr's read ends, and later
// VerbExited [CodeExited]; or VerbError [Failure] instead of either.
const (
	VerbRunCode = "run-code" // [CodeRequest]
	// VerbKillCode ends what runs on this connection, with all that it started;
	// VerbExited follows once none of its processes is left.
	VerbKillCode = "kill-code"
)

// Bounds of a piece of code.
const (
	MaxCode         = 1 << 20 // bytes
	MinCodeDuration = 100 * time.Millisecond
	MaxCodeDuration = 24 * time.Hour
)

// CodeLanguages are the languages that code may be in.
func CodeLanguages() []string { return []string{"python", "javascript", "bash"} }

// CodeRequest is one piece of code.
type CodeRequest struct {
	Language string     `json:"language"`
	Code     string     `json:"code"`
	Limits   CodeLimits `json:"limits"`
}

// CodeLimits bound one piece of code, below what its cell allows.
type CodeLimits struct {
	// Millis of wall time, from [MinCodeDuration] to [MaxCodeDuration].
	Millis int64 `json:"millis"`
}

// CodeStarted says that the code runs.
type CodeStarted struct {
	Container string `json:"container"` // its name, as the launcher and its cgroup have it
}

// CodeExited says that it has ended, and nothing of it is left.
type CodeExited struct {
	Code      int    `json:"code"`             // 128+signal when it was killed
	Signal    string `json:"signal,omitempty"` // "killed", "terminated", …
	OOM       bool   `json:"oom,omitempty"`    // the kernel killed something of it for memory
	TimedOut  bool   `json:"timedOut,omitempty"`
	Microsecs int64  `json:"microsecs"` // from its start to its end
}
