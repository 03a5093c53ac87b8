package evidence

import (
	"fmt"
	"os"
	"regexp"
	"slices"
	"strings"
	"testing"

	"bulkhead/internal/engine"
)

func TestTheTableHoldsTogether(t *testing.T) {
	seen := map[string]bool{}
	for _, a := range Attacks() {
		if seen[a.ID] {
			t.Errorf("%s is there twice", a.ID)
		}
		seen[a.ID] = true
		if a.Title == "" || a.Tries == "" || a.Attempt == "" || a.Reference == "" || a.Layer == "" || a.At == "" || a.Aim == nil || len(a.From) == 0 {
			t.Errorf("%s is incomplete: %+v", a.ID, a)
		}
		if len(a.Witness()) == 0 {
			t.Errorf("%s has no refusal that would count: it could never be denied", a.ID)
		}
		if slices.Contains(a.Witness(), "") || slices.Contains(a.Witness(), "ETIMEDOUT") {
			t.Errorf("%s takes going through, or silence, for a refusal", a.ID)
		}
		if (len(a.Controls) == 0) == (a.Uncontrolled == "") {
			t.Errorf("%s needs controls, or the reason why it has none, and not both", a.ID)
		}
		for _, c := range a.Controls {
			if slices.Contains(c.Off, c.Mechanism) {
				t.Errorf("%s: the control of %s switches off what it is about", a.ID, c.Mechanism)
			}
			for _, m := range append(slices.Clone(c.Off), c.Mechanism) {
				if !slices.Contains(engine.Mechanisms(), m) {
					t.Errorf("%s: no mechanism %q", a.ID, m)
				}
			}
			if len(c.Witness) == 0 {
				t.Errorf("%s: the control of %s knows no refusal", a.ID, c.Mechanism)
			}
		}
		// A mechanism with a control of its own refuses by itself, so every other
		// control has to switch it off, or its second half could not succeed.
		for _, c := range a.Controls {
			for _, o := range a.Controls {
				if o.Mechanism != c.Mechanism && o.Position() == c.Position() && !slices.Contains(c.Off, o.Mechanism) {
					t.Errorf("%s: the control of %s leaves %s on, which refuses by itself", a.ID, c.Mechanism, o.Mechanism)
				}
			}
		}
	}
}

func TestEveryMechanismHasAControl(t *testing.T) {
	for _, m := range engine.Mechanisms() {
		if m == engine.MechNoNewPrivs {
			continue // docs/contracts/verify.md says why
		}
		if !slices.ContainsFunc(Attacks(), func(a Attack) bool {
			return slices.ContainsFunc(a.Controls, func(c Control) bool { return c.Mechanism == m })
		}) {
			t.Errorf("nothing shows what %s stops", m)
		}
	}
}

func TestEveryAttemptOfTheProbeIsUsedAndEveryUsedOneExists(t *testing.T) {
	source, err := os.ReadFile("../../cmd/bulkhead-probe/trial.go")
	if err != nil {
		t.Fatal(err)
	}
	var has []string
	for _, m := range regexp.MustCompile(`"([a-z_0-9]+\.[a-z_0-9]+)":\s+\{do:`).FindAllStringSubmatch(string(source), -1) {
		has = append(has, m[1])
	}
	if len(has) < 30 {
		t.Fatalf("found only %d attempts in the probe", len(has))
	}
	var used []string
	for _, a := range Attacks() {
		used = append(used, a.Attempt)
		if !slices.Contains(has, a.Attempt) {
			t.Errorf("%s uses attempt %s, which the probe has not", a.ID, a.Attempt)
		}
	}
	for _, name := range has {
		if !slices.Contains(used, name) {
			t.Errorf("no attack uses the probe's %s", name)
		}
	}
}

func TestTheContractListsEveryAttack(t *testing.T) {
	doc, err := os.ReadFile("../../docs/contracts/verify.md")
	if err != nil {
		t.Fatal(err)
	}
	for _, a := range Attacks() {
		var from, by []string
		for _, p := range a.From {
			from = append(from, string(p))
		}
		for _, c := range a.Controls {
			by = append(by, string(c.Mechanism))
		}
		if a.Uncontrolled != "" {
			by = []string{"none: " + a.Uncontrolled}
		}
		line := fmt.Sprintf("| `%s` | %s | %s | %s | %s | %s |\n", a.ID, a.Title, a.Tries, a.Layer, strings.Join(from, ", "), strings.Join(by, ", "))
		if !strings.Contains(string(doc), line) {
			t.Errorf("docs/contracts/verify.md should say\n%s", line)
		}
	}
}
