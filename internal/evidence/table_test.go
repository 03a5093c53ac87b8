package evidence

import (
	"flag"
	"fmt"
	"os"
	"path/filepath"
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
		if !slices.ContainsFunc(slices.Concat(Attacks(), Exhaustion()), func(a Attack) bool {
			return slices.ContainsFunc(a.Controls, func(c Control) bool { return c.Mechanism == m })
		}) {
			t.Errorf("nothing shows what %s stops", m)
		}
	}
}

func TestEveryAttemptOfTheProbeIsUsedAndEveryUsedOneExists(t *testing.T) {
	files, err := filepath.Glob("../../cmd/bulkhead-probe/*.go")
	if err != nil {
		t.Fatal(err)
	}
	var has []string
	for _, f := range files {
		source, err := os.ReadFile(f)
		if err != nil {
			t.Fatal(err)
		}
		for _, m := range regexp.MustCompile(`"([a-z_0-9]+\.[a-z_0-9]+)":\s+\{do:`).FindAllStringSubmatch(string(source), -1) {
			has = append(has, m[1])
		}
	}
	if len(has) < 90 {
		t.Fatalf("found only %d attempts in the probe", len(has))
	}
	used := []string{"neighbour.work"}
	for _, a := range slices.Concat(Attacks(), Exhaustion()) {
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

var update = flag.Bool("update", false, "write what the documents say about attacks")

// attackTable is the table of docs/contracts/verify.md.
func attackTable() string {
	var b strings.Builder
	b.WriteString("| id | what would succeed | tries | layer | from | controlled mechanisms | reference |\n|---|---|---|---|---|---|---|\n")
	for _, a := range slices.Concat(Attacks(), Exhaustion()) {
		var from, by []string
		for _, p := range a.From {
			from = append(from, string(p))
		}
		if strings.HasPrefix(a.ID, "exhaust.") {
			from = []string{"a decoy, beside a neighbour"}
		}
		for _, c := range a.Controls {
			by = append(by, string(c.Mechanism))
		}
		if a.Uncontrolled != "" {
			by = []string{"none: " + a.Uncontrolled}
		}
		at := ""
		if a.At == AtOthers {
			at = ", at each other agent"
		}
		fmt.Fprintf(&b, "| `%s` | %s | %s | %s | %s%s | %s | %s |\n", a.ID, a.Title, a.Tries, a.Layer, strings.Join(from, ", "), at, strings.Join(by, ", "), a.Reference)
	}
	return b.String()
}

func TestTheContractListsEveryAttack(t *testing.T) {
	const path, begin, end = "../../docs/contracts/verify.md", "<!-- attacks: go test ./internal/evidence -run Contract -update -->\n", "<!-- end -->\n"
	doc, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	before, rest, ok := strings.Cut(string(doc), begin)
	_, after, closed := strings.Cut(rest, end)
	if !ok || !closed {
		t.Fatalf("%s has no place for the table", path)
	}
	want := before + begin + attackTable() + end + after
	if *update {
		if err := os.WriteFile(path, []byte(want), 0o644); err != nil {
			t.Fatal(err)
		}
		return
	}
	if string(doc) != want {
		t.Errorf("the attacks changed; if that is meant: go test ./internal/evidence -run Contract -update, and look at what changed in %s", path)
	}
}

// TestTheLibraryIsAsLargeAsItClaims keeps the number that the documents give.
func TestTheLibraryIsAsLargeAsItClaims(t *testing.T) {
	if n := len(Attacks()) + len(Exhaustion()); n < 120 {
		t.Errorf("%d attacks", n)
	}
}
