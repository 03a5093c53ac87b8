package prove

import (
	"context"
	"fmt"
	"net/netip"
	"slices"
	"time"

	"golang.org/x/sys/unix"

	"bulkhead/internal/engine"
	"bulkhead/internal/layout"
	"bulkhead/internal/prove/packets"
)

// Agent is one agent as the warden knows it: whom to look at, and what the
// manifest allows it. Everything else is read from the kernel.
type Agent struct {
	Name, Account string
	IDs           layout.IDs
	// Processes are all of the agent's, from cgroups that root owns.
	Processes []Process
	// Pins are the addresses that the manifest's destinations have now.
	Pins   []netip.AddrPort
	Limits []Limit
	// Resources are what the manifest lets processes of the runtime have.
	Resources Resources
	// Places are what is the agent's alone on the host.
	Places []Place
	// Labels are the AppArmor profiles that the containers should run under, by
	// role; none: none was made.
	Labels map[engine.Role]string
	// Server says that this is none of the agents but a server that they have: the
	// team's message adapter, or the host's audit, control or front. It is one
	// process as its account, which owns no range and reaches nothing. Sockets are
	// then its own.
	Server  bool
	Sockets []Socket
	// Listen are the addresses of the host's network at which it takes connections:
	// front's.
	Listen []netip.AddrPort
	// Fenced says who fenced the agent and since when; empty: nobody did. Nothing
	// can be read of threads that are frozen.
	Fenced string
}

// Socket is one of a server's.
type Socket struct {
	Path    string
	ID      uint32 // the one that may connect
	Problem string // what is wrong with it, as it was read
}

// span are the ids that the agent's containers may have.
func (a Agent) span() span {
	if a.Server {
		return span{a.IDs.Account, a.IDs.Account}
	}
	return span{a.IDs.Base, a.IDs.Last()}
}

// meets says whether two agents could have an id in common.
func (a Agent) meets(o Agent) bool {
	switch {
	case a.Server && o.Server:
		return a.IDs.Account == o.IDs.Account
	case a.Server:
		return o.IDs.Holds(a.IDs.Account)
	case o.Server:
		return a.IDs.Holds(o.IDs.Account)
	}
	return a.IDs.Overlaps(o.IDs)
}

// Process is one process of an agent. A role that is empty is not a container's:
// podman, conmon, the launcher, which are walled in by the account's cell.
type Process struct {
	PID  int
	Role engine.Role
}

// Limit is one bound as a cgroup's file holds it.
type Limit struct {
	What, File, Value string
	Bound             bool // false: the kernel bounds nothing
}

// Request is what is to be proven.
type Request struct {
	Team   string
	Table  string // the name of our table, family inet
	Agents []Agent
	// Asleep are agents of which nothing runs: guests that wait for a call. Who owns
	// their files and ids is read all the same. Together they have one statement of
	// each kind, of AsleepName; those of which one does not hold have their own.
	Asleep     []Agent
	AsleepName string
	// Others are agents of other teams, with their ids: no id may be theirs as well.
	Others []Agent
	// Filters, when it is not nil, remembers comparisons from one run to the next.
	Filters *Filters
}

// Team proves the statements of a team.
func Team(ctx context.Context, q Request) (*Report, error) {
	r := &Report{SchemaVersion: SchemaVersion, Time: time.Now().UTC(), Team: q.Team, Kernel: kernel(), Agents: []string{}, Statements: []Statement{}}
	rules, err := packets.Read()
	if err != nil {
		return nil, err
	}
	w := readWay()
	defer func() { _ = w.close() }()
	filters := q.Filters
	if filters == nil {
		filters = &Filters{}
	}
	var places []written
	for _, a := range q.Agents {
		if err := ctx.Err(); err != nil {
			return nil, err
		}
		r.Agents = append(r.Agents, a.Name)
		if a.Fenced != "" {
			r.Fenced = append(r.Fenced, a.Name)
		}
		if a.Server {
			r.add(serverEgress(rules, q.Table, a))
		} else {
			r.add(dialerEgress(rules, w, q.Table, a))
			r.add(agentEgress(rules, q.Table, a))
		}
		r.add(filters.statement(a))
		r.add(privileges(a))
		r.add(namespaces(a))
		r.add(limits(a))
		r.add(mounts(a))
		r.add(label(a))
		r.add(modes(a))
		if a.Server {
			r.add(sockets(a))
			r.add(network(a))
		}
		places = append(places, writtenBy(a))
	}
	everybody := slices.Concat(q.Agents, q.Asleep, q.Others)
	for i, a := range q.Agents {
		r.add(ids(a, everybody))
		r.add(writable(places[i], places))
		r.add(shared(places[i], places))
	}
	if len(q.Asleep) > 0 {
		r.asleep(q, everybody)
	}
	return r, ctx.Err()
}

// asleep says of those that sleep what can be said of who does not run.
func (r *Report) asleep(q Request, everybody []Agent) {
	r.Agents = append(r.Agents, q.AsleepName)
	for _, kind := range []struct {
		id, says string
		of       func(Agent) Statement
	}{
		{"modes", "each folder, file and disk of those that sleep belongs to whom it should, and is open to nobody else", modes},
		{"ids", "no id of those that sleep is another agent's", func(a Agent) Statement { return ids(a, everybody) }},
	} {
		all, held := Statement{ID: kind.id, Agent: q.AsleepName, Says: kind.says}, 0
		for _, a := range q.Asleep {
			s := kind.of(a)
			if s.close(); !s.Holds {
				r.add(s)
				continue
			}
			held++
		}
		all.read("%d that sleep, of %d", held, len(q.Asleep))
		r.add(all)
	}
}

func kernel() string {
	var u unix.Utsname
	if unix.Uname(&u) != nil {
		return "unknown"
	}
	return unix.ByteSliceToString(u.Release[:]) + " " + unix.ByteSliceToString(u.Machine[:])
}

func limits(a Agent) Statement {
	s := Statement{ID: "limits", Agent: a.Name, Says: "memory, processes and processor time are bounded in the kernel"}
	if len(a.Limits) == 0 {
		s.against("no cgroup of %s could be read", a.Name)
	}
	for _, l := range a.Limits {
		s.Read = append(s.Read, fmt.Sprintf("%s: %s in %s", l.What, l.Value, l.File))
		if !l.Bound {
			s.against("%s is not bounded: %s holds %q", l.What, l.File, l.Value)
		}
	}
	s.resources(a)
	return s
}

// nothing says why there was nothing to look at.
func (a Agent) nothing(of string) string {
	if a.Fenced != "" {
		return fmt.Sprintf("the agent is fenced %s: frozen, so that nothing can be read of its %ss, and cut off from every network. `bulkhead release %s` brings it back", a.Fenced, of, a.Name)
	}
	return fmt.Sprintf("no %s of a container was found", of)
}

// ids names what the agent was given.
func (a Agent) ids() string {
	if a.Server {
		return fmt.Sprintf("account %d", a.IDs.Account)
	}
	return a.IDs.String()
}

// ids compares the agent's ids with everybody's.
func ids(a Agent, all []Agent) Statement {
	s := Statement{ID: "ids", Agent: a.Name, Says: "no id of the agent is another agent's"}
	s.Read = append(s.Read, a.ids())
	for _, o := range all {
		if o.Name != a.Name && a.meets(o) {
			s.against("%s has %s", o.Name, o.ids())
		}
	}
	return s
}
