package evidence

import (
	"path/filepath"
	"slices"
	"strings"

	"bulkhead/internal/deny"
	"bulkhead/internal/engine"
	"bulkhead/internal/evidence/attempt"
	"bulkhead/internal/layout"
)

// Position is a place from which an attack is made.
type Position string

// The positions.
const (
	FromRuntime Position = "runtime" // the agent framework was taken over
	FromGateway Position = "gateway" // that agent's gateway was
	FromAccount Position = "account" // somebody left both containers, and is the bare account
	FromCode    Position = "code"    // code that the gateway runs left its interpreter; only agents with such code have it
	FromServer  Position = "server"  // a server of the agents' was: the adapter, audit, control, front; nothing is tried at itself
)

// Positions lists them all.
func Positions() []Position {
	return []Position{FromRuntime, FromGateway, FromAccount, FromCode, FromServer}
}

// Targets says at whom an attack is aimed.
type Targets string

// The targets.
const (
	AtNobody Targets = "none"   // at the kernel, the host or the network: one row
	AtOthers Targets = "others" // one row for each other agent
	// AtNext is at the agent that follows in the manifest, so that each is
	// somebody's target: for what does not depend on whose the target is, and takes
	// of the calls that the attacker may make in a minute.
	AtNext Targets = "next"
)

// Attack is one way in which an agent could do harm.
type Attack struct {
	ID      string // stable; rows and documents use it
	Title   string // what succeeds if it succeeds
	Tries   string // what the probe does
	Attempt string // the probe's name for it
	Layer   deny.Layer
	From    []Position
	At      Targets
	// Reference is the attack in the world: a CVE, a paper, a manual page.
	Reference string
	// Aim gives the request's parameters. at is from itself for AtNobody.
	Aim func(from, at Agent, w World) attempt.Request
	// Controls are the mechanisms that refuse it, each on its own; the first is
	// the one that the attack is about.
	Controls []Control
	// Uncontrolled says why there is no control; the report repeats it.
	Uncontrolled string
	// Lacking are refusals that, with every mechanism off, mean that this kernel
	// has no such thing (or root switched it off): then there is no control.
	Lacking []string
	// Also are refusals that are as good in a live agent, where several
	// mechanisms stand behind each other.
	Also []string
	// Lacks says why the attack cannot be made from an agent, on this host; ""
	// when it can. Its row then is not run. It may be nil.
	Lacks func(from Agent, w World) string
	// Absent says why, by the manifest, there is nothing to aim at: who has none
	// of it, and of what; "" when there is. Then the attack is no part of the
	// team's matrix ([LeftOut]). It may be nil.
	Absent func(from, at Agent) (who, why string)
	// OnlyThere says that its paths are the host's, and that only those which are
	// there are tried: what does not exist is refused to everybody. One that is
	// expected ([Agent.Expected]) and not there fails the row.
	OnlyThere bool
	// None says what it means that none of them is there and none was expected:
	// then it is left out. "" for what every agent has: then nothing is proven.
	None string
	// Disturbs says that it changes what other attempts of the same decoy would
	// meet when it succeeds: it then has decoys of its own.
	Disturbs bool
}

// Control switches mechanisms off in a decoy.
type Control struct {
	Mechanism engine.Mechanism
	// Off are all other mechanisms that would refuse the attack as well.
	Off []engine.Mechanism
	// Witness is how a refusal by Mechanism alone looks.
	Witness []string
	// From is where the decoy stands; empty: FromRuntime.
	From Position
}

// Position gives From with its default.
func (c Control) Position() Position {
	if c.From == "" {
		return FromRuntime
	}
	return c.From
}

// Mechanism is the one that the attack is about.
func (a Attack) Mechanism() engine.Mechanism {
	if len(a.Controls) == 0 {
		return ""
	}
	return a.Controls[0].Mechanism
}

// Witness is every refusal that counts as a denial in a live agent.
func (a Attack) Witness() []string {
	w := slices.Clone(a.Also)
	for _, c := range a.Controls {
		w = append(w, c.Witness...)
	}
	slices.Sort(w)
	return slices.Compact(w)
}

// Agent is an agent as attacks see it, attacker or target.
type Agent struct {
	Name  string
	Place layout.Agent
	IDs   layout.IDs
	// PIDs are the host's numbers of its running processes, from cgroups that
	// root owns.
	PIDs []int
	// Listed is one destination of its manifest, "name:port"; empty when it has
	// none.
	Listed string
	// Named is one that is bound to its name, by TLS or by Host; empty when it
	// has none.
	Named string
	// Upstream is where the agent's dialer may reach its upstream proxy,
	// "address:port"; empty when it has none, or none is pinned.
	Upstream string
	// Proxy is where its runtime finds the HTTP proxy, "address:port".
	Proxy string
	// Dialer is the path of dialer.sock as its gateway sees it; empty when it has
	// none, as a guest without destinations.
	Dialer string
	// Adapter is the path of its adapter.sock as its gateway sees it; empty when
	// its team has no messages.
	Adapter string
	// Server says that it is none of the agents but a server that they have: an
	// attacker, and no target. Its IDs.Account is all that it has.
	Server bool
	// Guest says that it was made over HTTP and has no runtime.
	Guest bool
	// Expected are paths of the host that are there while it runs, as its manifest
	// says.
	Expected []string
	// Code says that its gateway has code run, in cells of its own.
	Code bool
	// Siblings are the host's numbers of everything that runs for the agent: its
	// containers, its launcher, other code.
	Siblings []int
	// TokenFile is where its runtime finds the token of its tools.
	TokenFile string
	// Audit, Front and Topics are the paths of its sockets of those servers as its
	// gateway sees them; empty when its team has none.
	Audit, Front, Topics string
	// Unpublished and Unread are public topics of its team, with their prefix, in
	// which the manifest does not let it publish, or does not let it read.
	Unpublished, Unread []string
	// Listens is where its team's front listens, "address:port"; empty when it has
	// none.
	Listens string
	// ReadOnly are paths that its runtime is given to read and not to write, as it
	// sees them.
	ReadOnly []string
	// Knowledge are folders and files of the host that its manifest gives it to
	// read.
	Knowledge []string
	// Fetches says that it has the tool net_http_get.
	Fetches bool
	// Tokens are [TokenSum] of every token by which its runtime, its gateway and the
	// servers know each other, and Shown those of them that its runtime has.
	Tokens, Shown []string
	// Foreign are those of all agents that must not be found where it is attacked
	// from. The runner says which.
	Foreign []string
	// Tools are the groups and names of tools that it may call, and Rate how many
	// calls a minute; 0: that is not known.
	Tools []string
	Rate  int64
	// Redirects is a listed destination, "name:port", that redirects to where its
	// path says; only a decoy has one.
	Redirects string
	// Resolved are destinations whose addresses are DNS's word at every time,
	// "name:port".
	Resolved []string
	// Taken are attacks whose mechanism this agent's own manifest takes away.
	Taken []Taken
}

// Taken is one attack that succeeds by the choice of the manifest.
type Taken struct {
	Attack   string
	Position Position
	Why      string
}

// World is what surrounds the agents.
type World struct {
	Unlisted  string   // "address:port" that no manifest lists
	Unlisted6 string   // the same over IPv6
	Public    []string // addresses of resolvers that speak DNS in all its forms
	Loopback  string   // a TCP listener on the host's own loopback
	// LoopbackUDP answers packets there; Loopback6 and Own are TCP listeners on
	// ::1 and on an address of the host itself, empty where there is none.
	LoopbackUDP, Loopback6, Own string

	Resolvers []string // "address:53", from the host's resolv.conf
	Abstract  string   // "@name" of an abstract socket in the host's network namespace
	Table     string   // the nftables table
	// Changing is for how long the answers of DNS go on changing, in milliseconds;
	// 0: nobody here changes them.
	Changing int64
	Spare    []uint64 // mount and network namespaces that no probe may harm
}

// Secrets lists what no other agent may read.
func (a Agent) Secrets() []string {
	kept := []string{a.Place.Data(), a.Place.Control(), a.Place.Logs()}
	if a.Guest {
		return kept
	}
	return append([]string{a.Place.Home(), a.Place.Workspace()}, kept...)
}

// Sockets lists what no other agent may connect to.
func (a Agent) Sockets() []string {
	return []string{
		a.Place.GatewaySocket(), a.Place.DialerSocket(), a.Place.PinSocket(), a.Place.LauncherSocket(), a.Place.GrantsSocket(),
		a.Place.ShimSocket("runtime"), a.Place.ShimSocket("gateway"),
	}
}

// host is where things lie on the agent's host, as far as attacks name them.
func (a Agent) host() layout.Host {
	up := func(p string, n int) string {
		for range n {
			p = filepath.Dir(p)
		}
		return p
	}
	return layout.Host{State: up(a.Place.State, 4), Run: up(a.Place.Run, 3)} // see layout.Host.Agent
}

// adapter is where the message adapter of the agent's team lives.
func (a Agent) adapter() layout.Agent { return a.host().Agent(a.Place.Team, layout.AdapterName) }

// has says whether an agent has a position.
func (a Agent) has(p Position) bool {
	switch {
	case a.Server || p == FromServer:
		return a.Server && p == FromServer
	case p == FromCode:
		return a.Code
	case p == FromRuntime:
		return !a.Guest
	}
	return true
}

// may says whether an agent may call a tool.
func (a Agent) may(tool string) bool {
	group, _, _ := strings.Cut(tool, "_")
	return slices.Contains(a.Tools, tool) || slices.Contains(a.Tools, group)
}

// own lists the attacker's ids as seen from p.
func (a Agent) own(p Position) []attempt.Span {
	switch p {
	case FromRuntime:
		return []attempt.Span{{First: layout.RuntimeID, Last: layout.RuntimeID}}
	case FromGateway:
		return []attempt.Span{{First: layout.GatewayID, Last: layout.GatewayID}}
	case FromServer:
		return []attempt.Span{{First: a.IDs.Account, Last: a.IDs.Account}}
	case FromCode:
		return []attempt.Span{{First: layout.ProcID, Last: layout.ProcID}}
	}
	return []attempt.Span{{First: a.IDs.Account, Last: a.IDs.Account}, {First: a.IDs.Base, Last: a.IDs.Last()}}
}
