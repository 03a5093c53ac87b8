// Package protocol is what is said to an adapter: the configuration that it
// finds at its start, and the protocol `adapter` version 1 of gateways and
// operators (docs/contracts/messages.md).
//
// # On the wire
//
// Frames are those of internal/wire. A connection opens with hello of both
// sides. An agent's gateway then sends [VerbAuth], which is answered by
// [VerbOK], or by [VerbDenied] and the end; root on the operator's socket needs
// no token. From there on requests are pipelined: each carries an id that no
// other open request of the connection has, answers carry it back and come in
// any order. Descriptors are never taken: the kernel closes what is passed.
//
// Every request is answered by the verb of its row, by [VerbDenied] with a
// deny.Reason, or by [VerbError] with a wire.Failure. What is larger than a
// frame comes in several answers with the same id; all but the last say
// "more": true.
package protocol
