package toolname

import (
	"os"
	"strings"
	"testing"
)

func TestTheContractNamesTheSameTools(t *testing.T) {
	doc, err := os.ReadFile("../../../docs/contracts/tools.md")
	if err != nil {
		t.Fatal(err)
	}
	rows := 0
	for _, g := range Groups() {
		row := "| `" + string(g) + "` | `" + strings.Join(Of(g), "` `") + "` |"
		if !strings.Contains(string(doc), row) {
			t.Errorf("docs/contracts/tools.md has no row %s", row)
		}
		for _, name := range Of(g) {
			if GroupOf(name) != g {
				t.Errorf("%s is of group %q", name, GroupOf(name))
			}
		}
		rows++
	}
	if got := strings.Count(string(doc), "| internal/"); got != rows || len(names) != rows {
		t.Errorf("the contract has %d groups, the program %d and %d", got, rows, len(names))
	}
	for _, none := range []string{"", "mem", "mem_", "_mem", "mem_get_", "agentos.mem_get", "proc_resume"} {
		if g := GroupOf(none); g != "" {
			t.Errorf("%q is of group %q", none, g)
		}
	}
}
