package evidence

import (
	"slices"

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
)

// Positions lists them all.
func Positions() []Position { return []Position{FromRuntime, FromGateway, FromAccount} }

// Targets says at whom an attack is aimed.
type Targets string

// The targets.
const (
	AtNobody Targets = "none"   // at the kernel, the host or the network: one row
	AtOthers Targets = "others" // one row for each other agent
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
	// Dialer is the path of dialer.sock as its gateway sees it.
	Dialer string
	// Adapter is the path of its adapter.sock as its gateway sees it; empty when
	// its team has no messages.
	Adapter string
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
	Spare     []uint64 // mount and network namespaces that no probe may harm
}

// Secrets lists what no other agent may read.
func (a Agent) Secrets() []string {
	return []string{a.Place.Home(), a.Place.Workspace(), a.Place.Data(), a.Place.Control(), a.Place.Logs()}
}

// Sockets lists what no other agent may connect to.
func (a Agent) Sockets() []string {
	return []string{
		a.Place.GatewaySocket(), a.Place.DialerSocket(), a.Place.PinSocket(), a.Place.LauncherSocket(),
		a.Place.ShimSocket("runtime"), a.Place.ShimSocket("gateway"),
	}
}

// own lists the attacker's ids as seen from p.
func (a Agent) own(p Position) []attempt.Span {
	switch p {
	case FromRuntime:
		return []attempt.Span{{First: layout.RuntimeID, Last: layout.RuntimeID}}
	case FromGateway:
		return []attempt.Span{{First: layout.GatewayID, Last: layout.GatewayID}}
	}
	return []attempt.Span{{First: a.IDs.Account, Last: a.IDs.Account}, {First: a.IDs.Base, Last: a.IDs.Last()}}
}
