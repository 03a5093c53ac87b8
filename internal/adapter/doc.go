// Package adapter is the one durable way in which agents of a team speak with
// each other: messages with at-least-once delivery, channels with gapless
// sequences, leases, retries, dead letters, bounded and fair queues.
//
// It knows nothing of sockets, HTTP or the manifest's YAML: a caller that was
// authenticated elsewhere (by its own socket, its peer id and its token) is an
// agent's name here, and what agents may do is a [Policy]. docs/contracts/messages.md
// is the contract.
//
// Here are the types and what can be asked ([Service], [Operator]), which every
// program may link; internal/adapter/store keeps the messages.
package adapter
