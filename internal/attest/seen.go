package attest

import (
	"encoding/json"
	"fmt"
)

// Seen are the two reports of a piece of evidence, as far as a reader needs them.
// The types are not those of internal/evidence and internal/prove, which would
// bring the attacks and nftables into whoever reads.
type Seen struct {
	Verify Attacks
	Prove  Proofs
}

// Attacks is the report of verify (docs/contracts/verify.md).
type Attacks struct {
	SchemaVersion int      `json:"schemaVersion"`
	Team          string   `json:"team"`
	Agents        []string `json:"agents"`
	Guests        []string `json:"guests"` // of Agents: those that were awake
	Attacks       int      `json:"attacks"`
	Denied        int      `json:"denied"`
	Succeeded     int      `json:"succeeded"`
	Unproven      int      `json:"unproven"`
	NotRun        int      `json:"not_run"`
	Notes         []string `json:"notes"`
	// LeftOut is what there are no rows for, since the team has nothing of the kind;
	// evidence names it among what is not covered.
	LeftOut  []LeftOut `json:"leftOut"`
	Controls struct {
		Run    int       `json:"run"`
		Bit    int       `json:"bit"`
		NotRun int       `json:"not_run"`
		Rows   []Control `json:"rows"`
	} `json:"controls"`
	Rows []Attempt `json:"rows"`
}

// Attempt is one attack from one position of one agent.
type Attempt struct {
	Agent    string `json:"agent"`
	Position string `json:"position"`
	Target   string `json:"target"`
	Attack   string `json:"attack"`
	Layer    string `json:"layer"`
	Verdict  string `json:"verdict"` // "denied", "succeeded", "unproven", "not_run"
	Evidence string `json:"evidence"`
}

// LeftOut is one reason, the agents of which it is said, and the attacks.
type LeftOut struct {
	Why     string   `json:"why"`
	Of      []string `json:"of"`
	Attacks []string `json:"attacks"`
	Rows    int      `json:"rows"`
}

// Control is one mechanism against one attack, in a decoy.
type Control struct {
	Attack    string `json:"attack"`
	Mechanism string `json:"mechanism"`
	Position  string `json:"position"`
	On        string `json:"on"`
	Without   string `json:"without"`
	Bit       bool   `json:"bit"`
	NotRun    string `json:"notRun"`
}

// Proofs is the report of prove (docs/contracts/prove.md).
type Proofs struct {
	SchemaVersion int      `json:"schemaVersion"`
	Team          string   `json:"team"`
	Kernel        string   `json:"kernel"`
	Agents        []string `json:"agents"`
	Held          int      `json:"held"`
	Failed        int      `json:"failed"`
	Statements    []Proof  `json:"statements"`
}

// Proof is one statement.
type Proof struct {
	ID       string    `json:"id"`
	Agent    string    `json:"agent"`
	Says     string    `json:"says"`
	Holds    bool      `json:"holds"`
	Premises []Premise `json:"premises"`
	Read     []string  `json:"read"`
	Against  []string  `json:"against"`
}

// Premise is what a statement rests on.
type Premise struct {
	Says  string `json:"says"`
	Holds bool   `json:"holds"`
	Why   string `json:"why"`
}

// Seen decodes the two reports.
func (e *Evidence) Seen() (*Seen, error) {
	var s Seen
	if err := json.Unmarshal(e.Verify, &s.Verify); err != nil {
		return nil, fmt.Errorf("%w: the report of verify: %w", ErrFormat, err)
	}
	if err := json.Unmarshal(e.Prove, &s.Prove); err != nil {
		return nil, fmt.Errorf("%w: the report of prove: %w", ErrFormat, err)
	}
	if s.Verify.SchemaVersion != 1 || s.Prove.SchemaVersion != 1 {
		return nil, fmt.Errorf("%w: its reports have schemaVersion %d and %d, this program reads 1", ErrFormat, s.Verify.SchemaVersion, s.Prove.SchemaVersion)
	}
	return &s, nil
}

// Tests names what the two reports tried, each with the worst that was seen:
// attack/AGENT/POSITION/ATTACK, control/ATTACK/POSITION/MECHANISM and
// statement/AGENT/ID.
func (s *Seen) Tests() Tests {
	t := Tests{}
	for _, r := range s.Verify.Rows {
		name := "attack/" + r.Agent + "/" + r.Position + "/" + r.Attack
		switch r.Verdict {
		case "denied":
			t.note(name, passed)
		case "not_run":
			t.note(name, notRun)
		default:
			t.note(name, failed)
		}
	}
	for _, c := range s.Verify.Controls.Rows {
		name := "control/" + c.Attack + "/" + c.Position + "/" + c.Mechanism
		switch {
		case c.NotRun != "":
			t.note(name, notRun)
		case c.Bit:
			t.note(name, passed)
		default:
			t.note(name, failed)
		}
	}
	if len(s.Verify.Controls.Rows) == 0 {
		t.note("controls", notRun)
	}
	for _, p := range s.Prove.Statements {
		name := "statement/" + p.Agent + "/" + p.ID
		if p.Holds {
			t.note(name, passed)
		} else {
			t.note(name, failed)
		}
	}
	return t
}
