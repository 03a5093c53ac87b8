// Package prove makes exact statements about a running team from what the
// kernel holds, not from samples and not from our own configuration.
//
// Each [Statement] says what holds, on which premises, and what was read to know
// it; a premise that does not hold makes the statement not hold. What cannot be
// read is not proven. The statements:
//
//   - egress.dialer: the packets that the host's rules let an agent's dialer send
//     are exactly those to the addresses that the manifest's destinations have
//     now (internal/prove/packets).
//   - egress.agent: the rules let no packet out of the agent's account or of any
//     id of its range.
//   - syscalls: no thread of the agent's containers may make a call, for any
//     number, architecture and argument, that its role's profile refuses
//     (internal/prove/filter, internal/prove/threads).
//   - privileges: no thread has a capability, may gain one, or runs as an id
//     outside of the agent's range.
//   - namespaces: every process of the agent's containers is in a network
//     namespace with loopback alone, and in no namespace of the host's.
//   - ids: no id of the agent is another agent's.
//   - writable: nothing that one agent's processes may write is also another's.
//   - shared: nothing that one agent's processes may only read is another's to write.
//   - label: every process of the agent's containers has the label of AppArmor that
//     was meant for it.
//   - sockets: each of a server's sockets is for one id.
//   - network: a server holds no socket of the host's network; front holds those at
//     which it listens, on loopback.
//   - modes: what is one agent's or server's alone on the host is open to nobody else.
//   - limits: memory, processes and processor time are bounded in the kernel.
package prove
