// Package message is the runtime's side of messages: `bulkhead-shim msg`, which
// agents call, and the delivery into an agent's own HTTP hook ([Pusher]). Both
// speak the gateway's REST (docs/contracts/messages.md) over gateway.sock.
package message
