// Package evidence attacks a running team and says what came of it.
//
// Configuration proves nothing; only the kernel's answer to a real attempt
// does. So [Run] starts the probe (cmd/bulkhead-probe) in the places that an
// agent could be taken over in, its runtime, its gateway, its bare account and the
// cells of its code, and in twins of the cells of its team's servers,
// and lets it make every attempt of [Attacks] there. One row of the [Report]
// is one attempt.
//
// # When a row counts as denied
//
// Only when an answer with the right nonce came back, and every step of it was
// refused in a way that the attack's mechanisms are known to refuse in
// ([Attack.Witness]). Anything else is not a denial: a probe that is lost, an
// errno that nobody expects (a wrong path gives ENOENT everywhere), a time
// limit. Such rows are "unproven" and fail the whole report.
//
// # Controls
//
// A check that cannot fail proves nothing either. Each attack therefore has
// controls ([Control]): decoys, never live agents, in which every other
// mechanism that would refuse is switched off. With the one mechanism on, the
// attempt must be denied; with it off, the same attempt, aimed by the same
// code, must succeed. Then the control bit.
//
// Controls run in a decoy host: a process of its own in new mount, network,
// PID, UTS and IPC namespaces, with a root file system that holds nothing of
// the machine but our programs, /dev and cgroups. What a switched-off
// mechanism lays open is that place. Everything in it ends with the process,
// also when whoever started it is killed; only its cgroup can outlive it, which
// [DecoyHost.Sweep] and the next run remove.
//
// # What it does not do
//
// It does not look for unknown holes, and it says nothing about what an agent
// does with what it is allowed. An attack that a mechanism stops in a decoy is
// stopped by the same code in an agent, but of the agent only its own rows
// speak.
package evidence
