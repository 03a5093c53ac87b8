package mutations

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// The measure that test/vm takes away is where it is looked for, what is left
// without it is a program, and the document names it.
func TestTheMeasureOfTheVirtualHostIsWhereItIsTaken(t *testing.T) {
	overlay, err := WithoutLabel(top, t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	build(t, "-overlay", overlay, "./internal/confine")
	doc, err := os.ReadFile(filepath.Join(top, "docs/mutations.md"))
	if err != nil {
		t.Fatal(err)
	}
	if row := fmt.Sprintf("| %s | `%s` |", LabelMeasure, LabelPlace); !strings.Contains(string(doc), row) {
		t.Errorf("docs/mutations.md has no row %s", row)
	}
}
