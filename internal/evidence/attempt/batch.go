package attempt

import (
	"bytes"
	"encoding/json"
	"fmt"
	"io"
)

// Batch is what one probe process is given: everything that is tried from one
// place. Each attempt has a nonce of its own, and is answered by itself, one
// line each and in any order, as soon as it is over: what a probe said before
// it was killed still counts, what it did not say is lost.
type Batch struct {
	Version  int       `json:"version"`
	Attempts []Request `json:"attempts"`
}

// ReadBatch reads the one batch from r, which must end after it.
func ReadBatch(r io.Reader) (Batch, error) {
	raw, err := io.ReadAll(io.LimitReader(r, MaxBytes+1))
	if err != nil {
		return Batch{}, fmt.Errorf("%w: read: %w", ErrRequest, err)
	}
	return ParseBatch(raw)
}

// ParseBatch checks the JSON of a batch. Every error wraps [ErrRequest].
func ParseBatch(raw []byte) (Batch, error) {
	var b Batch
	if err := strict(raw, &b); err != nil {
		return Batch{}, fmt.Errorf("%w: %w", ErrRequest, err)
	}
	if b.Version != Version {
		return Batch{}, fmt.Errorf("%w: version %d, this probe speaks %d", ErrRequest, b.Version, Version)
	}
	seen := map[string]bool{}
	for _, q := range b.Attempts {
		if err := q.check(); err != nil {
			return Batch{}, err
		}
		if seen[q.Nonce] {
			return Batch{}, fmt.Errorf("%w: two attempts with one nonce", ErrRequest)
		}
		seen[q.Nonce] = true
	}
	return b, nil
}

// Result is what came back for one attempt: an answer, or why there is none.
// Err wraps [ErrLost].
type Result struct {
	Answer Answer
	Err    error
}

// ParseAnswers finds the answer to each attempt of b in what a probe said, in
// the order of the batch. A line that is no answer to any of them makes every
// attempt lost that no other line answers; an attempt that is answered twice is
// lost as well, because one of the two lines is not the probe's.
func ParseAnswers(raw []byte, b Batch) []Result {
	out := make([]Result, len(b.Attempts))
	at := map[string]int{}
	for i, q := range b.Attempts {
		at[q.Nonce] = i
	}
	answered := map[int]bool{}
	fault := fmt.Errorf("%w: no answer", ErrLost)
	if len(raw) > MaxBytes {
		fault, raw = fmt.Errorf("%w: more than %d bytes", ErrLost, MaxBytes), nil
	}
	for line := range bytes.Lines(raw) {
		line = bytes.TrimSpace(line)
		if len(line) == 0 {
			continue
		}
		var head struct {
			Nonce string `json:"nonce"`
		}
		err := json.Unmarshal(line, &head)
		i, known := at[head.Nonce]
		switch {
		case err != nil:
			fault = fmt.Errorf("%w: %w", ErrLost, err)
		case !known || head.Nonce == "":
			fault = fmt.Errorf("%w: wrong nonce", ErrLost)
		case answered[i]:
			out[i] = Result{Err: fmt.Errorf("%w: answered twice", ErrLost)}
		default:
			answered[i] = true
			out[i].Answer, out[i].Err = ParseAnswer(line, b.Attempts[i])
		}
	}
	for i := range out {
		if !answered[i] {
			out[i].Err = fault
		}
	}
	return out
}
