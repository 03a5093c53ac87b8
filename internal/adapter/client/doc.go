// Package client asks an adapter, for a gateway ([Agent]) and for an operator
// ([Operator]).
//
// Both are one connection with pipelined requests; any number of goroutines
// may ask at once. A connection that broke stays broken: [Agent.Done] tells,
// and whoever holds it dials again. A request that was open then fails with an
// error that wraps [ErrLost]: whether it was done is unknown, and sending the
// same idempotency keys again finds out without doing it twice.
package client
