package attest

import (
	"encoding/hex"
	"encoding/json"
	"fmt"
	"time"
)

// The types of a statement.
const (
	StatementType = "https://in-toto.io/Statement/v1"
	PredicateType = "https://in-toto.io/attestation/test-result/v0.1"
	// Extension is the predicate's key for the whole evidence.
	Extension = "https://bulkhead.invalid/evidence/v1"
)

// The results of a test-result predicate.
const (
	Passed = "PASSED" // everything was tried, refused and proven
	Warned = "WARNED" // nothing failed, but something was not run
	Failed = "FAILED"
)

// Statement is an in-toto Statement, version 1.
type Statement struct {
	Type          string     `json:"_type"`
	Subject       []Resource `json:"subject"`
	PredicateType string     `json:"predicateType"`
	Predicate     TestResult `json:"predicate"`
}

// Resource is an in-toto ResourceDescriptor.
type Resource struct {
	Name        string            `json:"name"`
	Digest      map[string]string `json:"digest,omitempty"`
	Annotations map[string]string `json:"annotations,omitempty"`
}

// TestResult is the predicate.
type TestResult struct {
	Result        string     `json:"result"`
	Configuration []Resource `json:"configuration"`
	PassedTests   []string   `json:"passedTests"`
	WarnedTests   []string   `json:"warnedTests"`
	FailedTests   []string   `json:"failedTests"`
	Evidence      Evidence   `json:"https://bulkhead.invalid/evidence/v1"`
}

// SchemaVersion is the version of [Evidence].
const SchemaVersion = 1

// Evidence is everything that was seen.
type Evidence struct {
	SchemaVersion int       `json:"schemaVersion"`
	Team          string    `json:"team"`
	Time          time.Time `json:"time"`  // UTC, when it was signed
	Build         string    `json:"build"` // of the warden
	Kernel        string    `json:"kernel"`
	// Verify and Prove are the reports as docs/contracts/verify.md and prove.md
	// have them.
	Verify json.RawMessage `json:"verify"`
	Prove  json.RawMessage `json:"prove"`
	// NotCovered says in words what none of it shows.
	NotCovered []string `json:"notCovered"`
}

// New makes a statement of reports; its result follows from their tests.
func New(subject, configuration []Resource, e Evidence) (*Statement, error) {
	e.SchemaVersion = SchemaVersion
	seen, err := e.Seen()
	if err != nil {
		return nil, err
	}
	tests := seen.Tests()
	s := &Statement{
		Type: StatementType, Subject: subject, PredicateType: PredicateType,
		Predicate: TestResult{
			Result: Passed, Configuration: configuration,
			PassedTests: tests.with(passed), WarnedTests: tests.with(notRun), FailedTests: tests.with(failed), Evidence: e,
		},
	}
	switch p := &s.Predicate; {
	case len(p.FailedTests) > 0, len(p.PassedTests) == 0:
		p.Result = Failed
	case len(p.WarnedTests) > 0:
		p.Result = Warned
	}
	return s, nil
}

// parseStatement reads a payload whose signature holds. Keys that it does not
// know are somebody's extensions.
func parseStatement(payload []byte) (*Statement, error) {
	var s Statement
	if err := decode(payload, &s, false); err != nil {
		return nil, fmt.Errorf("%w: statement: %w", ErrFormat, err)
	}
	switch e := s.Predicate.Evidence; {
	case s.Type != StatementType:
		return nil, fmt.Errorf("%w: its _type is %.80q, not %q", ErrFormat, s.Type, StatementType)
	case s.PredicateType != PredicateType:
		return nil, fmt.Errorf("%w: its predicateType is %.80q, not %q", ErrFormat, s.PredicateType, PredicateType)
	case e.SchemaVersion != SchemaVersion:
		return nil, fmt.Errorf("%w: its evidence has schemaVersion %d, this program reads %d", ErrFormat, e.SchemaVersion, SchemaVersion)
	case len(s.Subject) == 0:
		return nil, fmt.Errorf("%w: it has no subject", ErrFormat)
	}
	for _, r := range s.Subject {
		if raw, err := hex.DecodeString(r.Digest["sha256"]); err != nil || len(raw) != 32 {
			return nil, fmt.Errorf("%w: the subject %.80q has no SHA-256", ErrFormat, r.Name)
		}
	}
	switch s.Predicate.Result {
	case Passed, Warned, Failed:
	default:
		return nil, fmt.Errorf("%w: its result is %.20q", ErrFormat, s.Predicate.Result)
	}
	return &s, nil
}
