// Package deny holds the one type in which every layer says no.
//
// A denial names the layer that refused, the rule that it broke, what was
// asked and the exact change that would allow it. The same value is shown to
// the agent (as an error envelope), written to the record and printed to the
// operator, so that nobody has to guess which of six layers it was.
//
// The set of codes is closed: [Codes] lists it, docs/contracts/deny.md
// explains it, and a test keeps the two equal.
package deny

import (
	"cmp"
	"fmt"
	"strings"
)

// Layer names the part of the onion that refused. The values are part of the
// public contract (docs/contracts/deny.md).
type Layer string

// The layers, from the floor up (docs/DESIGN.md, "The onion").
const (
	LayerHost      Layer = "host"      // 0: the floor that doctor checks
	LayerAccount   Layer = "account"   // 1: one Linux user per agent, and its cell
	LayerPod       Layer = "pod"       // 2: namespaces, seccomp, Landlock, cgroups
	LayerQuota     Layer = "quota"     // 2: what one agent may take of the host's disk
	LayerMessages  Layer = "messages"  // 3a: the adapter
	LayerKnowledge Layer = "knowledge" // 3b: Markdown vaults
	LayerEgress    Layer = "egress"    // 4: nftables by id, the guard
	LayerVault     Layer = "vault"     // 5: secrets
	LayerTools     Layer = "tools"     // the primitives that a gateway serves its agent
)

// Code is the machine-readable rule that was broken.
type Code string

// The codes of every layer built so far.
const (
	// Egress: decided by the guard before a packet exists.
	NotListed      Code = "egress.not_listed"      // name or address is not in the manifest
	PortNotListed  Code = "egress.port_not_listed" // the name is listed, the port is not
	SpecialRange   Code = "egress.special_range"   // the name resolves to an IANA special-purpose range
	OwnAddress     Code = "egress.own_address"     // the name resolves to an address of this host
	NameMismatch   Code = "egress.name_mismatch"   // SNI or Host differs from the name asked for
	NoServerName   Code = "egress.no_server_name"  // TLS without SNI, or with encrypted ClientHello
	BadTarget      Code = "egress.bad_target"      // the request does not name a host and port
	NameUnresolved Code = "egress.name_unresolved" // DNS gave no usable address and no earlier answer is good
	Unreachable    Code = "egress.unreachable"     // allowed, but nothing answered there
	PinFailed      Code = "egress.pin_failed"      // the kernel did not take the pin; closed
	TooMany        Code = "egress.too_many"        // as many connections as limits.connections allows

	UpstreamRefused Code = "egress.upstream_refused" // allowed, but the upstream proxy did not connect
	RelayedOnly     Code = "egress.relayed_only"     // where the dialer relays, nobody gets a socket of the host's network

	EgressApproval    Code = "egress.approval"    // a person has to approve the destination first
	EgressDisapproved Code = "egress.disapproved" // a person said no to it

	// Identity: who is calling.
	BadPeer  Code = "identity.bad_peer"  // the socket's peer id is not the one that owns this socket
	BadToken Code = "identity.bad_token" // missing, unknown or expired token
	Locked   Code = "identity.locked"    // too many wrong admin tokens in a row

	// Messages: decided by the adapter.
	MessageNotAllowed   Code = "messages.not_allowed"   // the manifest does not let this agent write, send or read that
	MessageInvalid      Code = "messages.invalid"       // the request is malformed; every failing field is named
	MessageTooLarge     Code = "messages.too_large"     // a body over the limit
	MessageDuplicateKey Code = "messages.duplicate_key" // the idempotency key was used for another content
	MessageLeaseOver    Code = "messages.lease_over"    // the lease ended, was settled, or never was this agent's
	MessageQueueFull    Code = "messages.queue_full"    // the recipient's queue has no place for this sender now
	MessageQuota        Code = "messages.quota"         // too much of this sender is waiting already
	MessageUnavailable  Code = "messages.unavailable"   // it cannot be made durable now: disk full or failing, or the adapter is away

	// Tools: decided by the agent's gateway.
	ToolUnknown     Code = "tools.unknown"     // there is no tool of that name
	ToolNotAllowed  Code = "tools.not_allowed" // the manifest does not give the agent this tool, topic or channel
	ToolInvalid     Code = "tools.invalid"     // the input is malformed; every failing field is named
	ToolRate        Code = "tools.rate"        // too many calls in the last minute
	ToolQuota       Code = "tools.quota"       // the agent's storage or memory is used up
	ToolMissing     Code = "tools.missing"     // the key, file, row or process is not there
	ToolConflict    Code = "tools.conflict"    // it is there already, or changed meanwhile
	ToolUnsafe      Code = "tools.unsafe"      // an input that would leave the agent's own data, or change how it is kept
	ToolTooLarge    Code = "tools.too_large"   // an input or an answer over its limit
	ToolTimeout     Code = "tools.timeout"     // it took longer than it may
	ToolUnavailable Code = "tools.unavailable" // what it needs is away or cannot be made durable now
	ToolFailed      Code = "tools.failed"      // a fault of ours; the log has it
	ToolApproval    Code = "tools.approval"    // a person has to approve the call first; it waits
	ToolDisapproved Code = "tools.disapproved" // a person said no, or nobody decided in time

	// Operators.
	NotOperator Code = "operator.not_allowed" // the caller may not use this verb

	// Host.
	MissingFeature Code = "host.missing_feature" // the kernel lacks what a layer needs
)

// Codes returns every code, for documentation and for the test that keeps the
// contract complete.
func Codes() []Code {
	return []Code{
		NotListed, PortNotListed, SpecialRange, OwnAddress, NameMismatch, NoServerName, BadTarget,
		NameUnresolved, Unreachable, PinFailed, TooMany, UpstreamRefused, RelayedOnly, EgressApproval, EgressDisapproved, BadPeer, BadToken, Locked, MessageNotAllowed, MessageInvalid, MessageTooLarge,
		MessageDuplicateKey, MessageLeaseOver, MessageQueueFull, MessageQuota, MessageUnavailable,
		ToolUnknown, ToolNotAllowed, ToolInvalid, ToolRate, ToolQuota, ToolMissing, ToolConflict, ToolUnsafe, ToolTooLarge, ToolTimeout, ToolUnavailable, ToolFailed, ToolApproval, ToolDisapproved,
		NotOperator, MissingFeature,
	}
}

// Reason is one denial. It is an error, so it travels with %w and errors.As.
type Reason struct {
	Layer Layer  `json:"layer"`
	Code  Code   `json:"code"`
	What  string `json:"what"` // what was asked, e.g. "CONNECT evil.example:443"
	Why   string `json:"why"`  // the rule, in words
	Mend  string `json:"mend"` // the exact change that would allow it, or what to do instead

	// Fields are the failing ones of a malformed request, all of them.
	Fields []Field `json:"fields,omitempty"`
	// RetryAfter is in seconds, for the HTTP header of that name: trying again
	// sooner is in vain. 0: trying again does not help.
	RetryAfter int `json:"retryAfter,omitempty"`
	// Execution is where a call that waits for a person is kept.
	Execution string `json:"execution,omitempty"`
	// State is its state, for the envelope alone; empty: it waits.
	State string `json:"-"`
	// Kept is what records hold instead, when Why or Fields quote what was given to
	// the call: that may be a secret. nil: the reason itself.
	Kept *Reason `json:"-"`
}

// ForRecord gives the reason as a record may hold it; nil for nil.
func (r *Reason) ForRecord() *Reason {
	if r != nil && r.Kept != nil {
		return r.Kept
	}
	return r
}

// Failure says whether the code is of something that was allowed and did not work,
// which records tell from what was refused.
func (c Code) Failure() bool {
	switch c { //nolint:exhaustive // all others are refusals
	case Unreachable, NameUnresolved, PinFailed, UpstreamRefused, ToolTimeout, ToolUnavailable, ToolFailed:
		return true
	}
	return false
}

// Unquoted takes what an error's text quotes, as %q does, out of it, also when the end was
// cut: the errors of net/http and net/textproto quote lines of the other end's header, and
// that may be a secret.
func Unquoted(text string) string {
	var out strings.Builder
	for {
		before, rest, ok := strings.Cut(text, `"`)
		out.WriteString(before)
		if !ok {
			return out.String()
		}
		out.WriteString("(left out)")
		end := 0
		for end < len(rest) && rest[end] != '"' {
			if rest[end] == '\\' {
				end++
			}
			end++
		}
		text = rest[min(end+1, len(rest)):]
	}
}

// Field is one failing field of a request.
type Field struct {
	Name string `json:"name"` // as it is written in the request, e.g. "idempotency_key"
	Why  string `json:"why"`
}

// toAllow stands between what was denied and what would allow it.
const toAllow = "; to allow it: "

// Error gives one line for a person.
func (r *Reason) Error() string {
	return fmt.Sprintf("%s: denied by layer %s (%s): %s%s%s", r.What, r.Layer, r.Code, r.Why, toAllow, r.Mend)
}

// WithoutMend gives the text of a [Reason] without what would allow it, for who
// says that on a line of its own. Another text stays as it is.
func WithoutMend(text, mend string) string { return strings.TrimSuffix(text, toAllow+mend) }

// Envelope is the error body that agents receive over HTTP and tools.
type Envelope struct {
	Code        string `json:"code"`       // PERMISSION_DENIED, VALIDATION_ERROR, …
	Message     string `json:"message"`    // one sentence
	StatusCode  int    `json:"statusCode"` // the HTTP status
	WhatFailed  string `json:"whatFailed"`
	Why         string `json:"why"`
	Where       string `json:"where"` // layer and rule, "egress/egress.not_listed"
	PossibleFix string `json:"possibleFix"`

	Fields     []Field `json:"fields,omitempty"`     // of a VALIDATION_ERROR
	RetryAfter int     `json:"retryAfter,omitempty"` // seconds; goes into the header as well

	// Of an APPROVAL_REQUIRED: where the call is kept, and its state.
	ExecutionID string `json:"executionId,omitempty"`
	State       string `json:"state,omitempty"`
}

// waitingForUser is the state of an execution that a person has to decide about.
const waitingForUser = "waiting_for_user"

// Envelope turns the denial into the error body of the agents' API. The HTTP
// status is 403 for everything an agent could not mend by trying again, 401
// for identity, 429 for what is bounded in number and 502 where the far side
// failed; docs/contracts/deny.md has one for every code.
func (r *Reason) Envelope() Envelope {
	code, status, state := "PERMISSION_DENIED", 403, ""
	switch r.Code {
	case BadPeer, BadToken:
		code, status = "UNAUTHORIZED", 401
	case Unreachable, NameUnresolved, PinFailed, UpstreamRefused:
		code, status = "APP_UNAVAILABLE", 502
	case BadTarget, MessageInvalid, ToolInvalid:
		code, status = "VALIDATION_ERROR", 400
	case MessageDuplicateKey, MessageLeaseOver, ToolConflict:
		code, status = "CONFLICT", 409
	case MessageTooLarge, ToolTooLarge:
		code, status = "TOO_LARGE", 413
	case TooMany, Locked, MessageQueueFull, MessageQuota, ToolRate:
		code, status = "RATE_LIMITED", 429
	case ToolQuota:
		code, status = "QUOTA_EXCEEDED", 429
	case ToolUnknown, ToolMissing:
		code, status = "NOT_FOUND", 404
	case ToolUnsafe:
		code, status = "SECURITY_VIOLATION", 403
	case ToolApproval:
		code, state = "APPROVAL_REQUIRED", cmp.Or(r.State, waitingForUser)
	case ToolTimeout:
		code, status = "APP_UNAVAILABLE", 504
	case ToolFailed:
		code, status = "INTERNAL_ERROR", 500
	case MessageUnavailable, ToolUnavailable:
		code, status = "APP_UNAVAILABLE", 503
	}
	return Envelope{
		Code: code, Message: r.Error(), StatusCode: status,
		WhatFailed: r.What, Why: r.Why, Where: string(r.Layer) + "/" + string(r.Code), PossibleFix: r.Mend,
		Fields: r.Fields, RetryAfter: r.RetryAfter, ExecutionID: r.Execution, State: state,
	}
}
