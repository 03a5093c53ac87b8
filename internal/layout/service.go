package layout

import "path/filepath"

// The host's own servers beside a team's adapter. Each has an account of its
// own, "bulkhead-" and its name, and serves every team.
const (
	ControlName = "control" // issues tokens
	AuditName   = "audit"   // keeps records that nobody changes
	TopicsName  = "topics"  // keeps the public topics of teams
	FrontName   = "front"   // lets in who shows a token, from the host's loopback
)

// ServiceNames lists them in the order in which they start.
func ServiceNames() []string { return []string{AuditName, ControlName, TopicsName, FrontName} }

// Service is where one of them lives. State and Run are root's; only Data
// belongs to its account.
type Service struct {
	Name       string
	Account    string
	State, Run string
}

// Service gives the places of one server.
func (h Host) Service(name string) Service {
	return Service{Name: name, Account: SystemAccount + "-" + name, State: filepath.Join(h.State, name), Run: filepath.Join(h.Run, name)}
}

// Data is the server's own folder, mode 0700.
func (s Service) Data() string { return filepath.Join(s.State, "data") }

// Logs is root's folder of what it printed.
func (s Service) Logs() string { return filepath.Join(s.State, "log") }

// Conf is root's folder of its Spec, for people and for evidence.
func (s Service) Conf() string { return filepath.Join(s.Run, "conf") }

// Control is root's alone.
func (s Service) Control() string { return filepath.Join(s.Run, "control") }

// OperatorSocket is where the warden speaks to it.
func (s Service) OperatorSocket() string { return filepath.Join(s.Control(), "operator.sock") }

// Tokens holds the tokens of all gateways towards it, root's alone.
func (s Service) Tokens() string { return filepath.Join(s.Run, "tokens.json") }

// Cgroup is its place below our root cgroup. No team may have its name
// (internal/team, reserved names).
func (s Service) Cgroup() string { return s.Name }

// ServiceDir is mounted read-only into an agent's gateway; it holds the socket
// on which that gateway, and nobody else, reaches the server.
func (a Agent) ServiceDir(name string) string { return filepath.Join(a.Run, name) }

// ServiceSocket is root-owned, mode 0660, group the gateway's id.
func (a Agent) ServiceSocket(name string) string {
	return filepath.Join(a.ServiceDir(name), name+".sock")
}
