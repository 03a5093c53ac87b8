// Package messages is a gateway's side of the messages between agents: REST
// for the runtime, and behind it the connection to the team's adapter, the
// outbox, and the order between the two.
//
// # The way of a draft
//
// While the adapter answers, drafts of concurrent requests travel together and
// each is answered with what the adapter says. When it does not (no
// connection, no answer in time, or an answer that it cannot store now), the
// draft goes into the outbox (internal/gateway/outbox) and the answer is 202.
// Its idempotency key stays with it, so what the adapter had stored already is
// stored once.
//
// # The breaker
//
// A connection that broke, or over which a send was not answered in
// [answerTimeout], is given up: from then on nothing waits for the adapter, and
// it is dialled with growing pauses. The first thing over a new connection is
// the outbox.
//
// # Order
//
// What waits in the outbox goes first: a new draft waits until the outbox is
// drained, and joins it when the adapter goes away or draining takes long. A
// draft that the adapter refuses only for now (a full queue, a quota) holds
// back what goes to the same recipient or channel, and that alone; new drafts
// to there are refused with the same reason until it was taken. One that it
// refuses for good is kept in the outbox's list of refusals (GET /v1/outbox)
// and written down for the operator.
//
// # Gaps
//
// What the agent acknowledged last in each channel is kept (seen.go). What the
// adapter says was missed up to a delivery goes out beside it, and what nobody
// has any more is told to the operator (gaps.go, docs/decisions/0099).
//
// # Who may ask
//
// Whoever shows the tools' token (tooltoken.Of), as Bearer or as the password
// of Basic. gateway.sock demands the runtime's id as well. The way through the
// runtime's own loopback cannot show an id; the token alone keeps out whatever
// reaches that loopback without being a process of the runtime that may read
// the token's file: a page in a browser of the agent's, or a server that the
// agent was talked into proxying.
package messages
