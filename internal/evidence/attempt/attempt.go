// Package attempt is what the runner of attacks and the probe say to each
// other: one JSON [Batch] of requests, one line of JSON for each, then the
// probe ends.
//
// The probe is started once for each place that attempts are made in (a
// runtime, a gateway, a bare account, or a decoy of one of them), reads one
// [Batch] from its standard input and writes one [Answer] for each [Request] in
// it to its standard output. It reports what the kernel (or the gateway) said; whether
// that is what was promised is decided by the runner, which knows what a
// refusal must look like. What the probe cannot do is make a failure look like
// a refusal: an answer that is missing, malformed, for another attempt or with
// another nonce is lost ([ErrLost]), and a lost answer never counts as denied.
//
// The package imports nothing of Bulkhead, since the probe must stay small.
package attempt

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"strings"
)

// Version of both JSON forms (docs/contracts/verify.md).
const Version = 2

// Canary is what the target keeps in a decoy, in everything that its gateway keeps
// for it. No request holds it, so an answer that does shows the target's own.
const Canary = "canary-5f2c9a7e41d8b603"

// MaxBytes bounds a batch, and all answers to one. An attempt at another agent
// takes about a thousand bytes; this is room for all of them at some thirty.
const MaxBytes = 4 << 20

// Outcome is how an attempt ended, as the probe saw it.
type Outcome string

// The outcomes.
const (
	Denied      Outcome = "denied"      // every step was refused; Steps say how
	Succeeded   Outcome = "succeeded"   // at least one step went through
	Error       Outcome = "error"       // it could not be tried; says nothing about protection
	Unsupported Outcome = "unsupported" // this kernel lacks what the attack would use
)

// Request asks for one attempt. Which fields count depends on the attempt; the
// rest stay empty.
type Request struct {
	Version int    `json:"version"`
	Nonce   string `json:"nonce"`
	Attempt string `json:"attempt"`

	Paths     []string `json:"paths,omitempty"`     // files, folders or sockets, as the attacker would name them
	Addresses []string `json:"addresses,omitempty"` // "address:port" literals
	Names     []string `json:"names,omitempty"`     // "name:port" for proxy and dialer
	PIDs      []int    `json:"pids,omitempty"`      // of the target, as the host numbers them
	IDs       []uint32 `json:"ids,omitempty"`       // of the target, as the host numbers them
	Own       []Span   `json:"own,omitempty"`       // ids, as seen inside, that belong to the attacker
	Proxy     string   `json:"proxy,omitempty"`     // "address:port"; empty: from HTTPS_PROXY
	Dialer    string   `json:"dialer,omitempty"`    // path of dialer.sock
	Table     string   `json:"table,omitempty"`     // nftables table of family inet
	Take      int64    `json:"take,omitempty"`      // how much of something; the unit is the attempt's
	// Spare are inode numbers of mount and network namespaces that must not be
	// harmed: those of whoever asks.
	Spare []uint64 `json:"spare,omitempty"`
}

// Span is a closed range of ids.
type Span struct {
	First uint32 `json:"first"`
	Last  uint32 `json:"last"`
}

// Holds says whether id lies in the span.
func (s Span) Holds(id uint32) bool { return id >= s.First && id <= s.Last }

// Step is one thing that was tried. An attempt may have several, all of which
// must be refused.
type Step struct {
	What string `json:"what"`
	// Refusal is empty when it went through; else an errno's name ("EPERM"), a
	// deny.Code ("egress.not_listed"), "SIGSYS" or "absent" (searched for, not
	// there).
	Refusal string `json:"refusal,omitempty"`
}

// Answer is what came of it.
type Answer struct {
	Version int     `json:"version"`
	Nonce   string  `json:"nonce"`
	Attempt string  `json:"attempt"`
	Outcome Outcome `json:"outcome"`
	Errno   string  `json:"errno,omitempty"`   // the first step's refusal
	Detail  string  `json:"detail,omitempty"`  // for a person
	Witness string  `json:"witness,omitempty"` // what a success brought: proof, never content
	Steps   []Step  `json:"steps,omitempty"`
}

// ErrLost is wrapped by every fault of an answer. It is a failure of the
// check, never a denial.
var ErrLost = errors.New("probe lost")

// ErrRequest is wrapped by every fault of a request.
var ErrRequest = errors.New("probe: bad request")

// ParseRequest checks the JSON of a request.
func ParseRequest(raw []byte) (Request, error) {
	var q Request
	if err := strict(raw, &q); err != nil {
		return Request{}, fmt.Errorf("%w: %w", ErrRequest, err)
	}
	return q, q.check()
}

func (q Request) check() error {
	switch {
	case q.Version != Version:
		return fmt.Errorf("%w: version %d, this probe speaks %d", ErrRequest, q.Version, Version)
	case q.Nonce == "":
		return fmt.Errorf("%w: no nonce", ErrRequest)
	case q.Attempt == "":
		return fmt.Errorf("%w: no attempt", ErrRequest)
	}
	return nil
}

// ParseAnswer checks the JSON of an answer against the request that it must
// be for. Every error wraps [ErrLost].
func ParseAnswer(raw []byte, q Request) (Answer, error) {
	var a Answer
	if err := strict(raw, &a); err != nil {
		return Answer{}, fmt.Errorf("%w: %w", ErrLost, err)
	}
	switch {
	case a.Version != Version:
		return Answer{}, fmt.Errorf("%w: answer of version %d, want %d", ErrLost, a.Version, Version)
	case q.Nonce == "" || a.Nonce != q.Nonce:
		return Answer{}, fmt.Errorf("%w: wrong nonce", ErrLost)
	case a.Attempt != q.Attempt:
		return Answer{}, fmt.Errorf("%w: answer for attempt %q, asked %q", ErrLost, a.Attempt, q.Attempt)
	}
	return a, a.check()
}

// check refuses answers that contradict themselves: "denied" without a
// refusal in every step would be a denial that nobody made.
func (a Answer) check() error {
	through := 0
	for _, s := range a.Steps {
		if s.Refusal == "" {
			through++
		}
	}
	switch a.Outcome {
	case Denied:
		if len(a.Steps) == 0 || through > 0 {
			return fmt.Errorf("%w: says denied, but %d of %d steps went through", ErrLost, through, len(a.Steps))
		}
	case Succeeded:
		if through == 0 {
			return fmt.Errorf("%w: says succeeded, but no step went through", ErrLost)
		}
	case Error, Unsupported:
	default:
		return fmt.Errorf("%w: unknown outcome %q", ErrLost, a.Outcome)
	}
	return nil
}

// Evidence gives the answer in one line for a person.
func (a Answer) Evidence() string {
	var b strings.Builder
	for i, s := range a.Steps {
		if i > 0 {
			b.WriteString("; ")
		}
		if i == 4 && len(a.Steps) > 6 {
			fmt.Fprintf(&b, "and %d more", len(a.Steps)-i)
			break
		}
		b.WriteString(s.What)
		if s.Refusal == "" {
			b.WriteString(" WENT THROUGH")
		} else {
			b.WriteString(": " + s.Refusal)
		}
	}
	for _, more := range []string{a.Witness, a.Detail} {
		if more == "" {
			continue
		}
		if b.Len() > 0 {
			b.WriteString("; ")
		}
		b.WriteString(more)
	}
	return b.String()
}

// strict parses exactly one JSON value without unknown fields.
func strict(raw []byte, into any) error {
	if len(raw) > MaxBytes {
		return fmt.Errorf("more than %d bytes", MaxBytes)
	}
	d := json.NewDecoder(bytes.NewReader(raw))
	d.DisallowUnknownFields()
	if err := d.Decode(into); err != nil {
		return err
	}
	if _, err := d.Token(); !errors.Is(err, io.EOF) {
		return errors.New("more after the end of the JSON value")
	}
	return nil
}
