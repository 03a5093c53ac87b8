package main

import (
	"regexp"
	"strings"
	"testing"
	"unicode/utf8"

	"github.com/spf13/cobra"

	"bulkhead/internal/layout"
)

// maxHelp is the widest line of a command's description, in columns.
const maxHelp = 92

// told are descriptions in the third person ("Fetches").
var told = regexp.MustCompile(`^[A-Z][a-z]*[a-rt-z]s\b`)

func TestEveryCommandHasItsHelp(t *testing.T) {
	var walk func(c *cobra.Command)
	walk = func(c *cobra.Command) {
		for _, sub := range c.Commands() {
			walk(sub)
		}
		if c.Hidden {
			return
		}
		name := c.CommandPath()
		if c.Short == "" || c.Long == "" && (c.HasSubCommands() || c.Parent() == c.Root()) {
			t.Errorf("%s: it needs a Short and a Long", name)
		}
		if c.Example == "" && !c.HasSubCommands() {
			t.Errorf("%s: it needs an Example", name)
		}
		if told.MatchString(c.Short) || told.MatchString(c.Long) {
			t.Errorf("%s: say what it does in the imperative, like the others", name)
		}
		if strings.Contains(c.Long, `\\u`) {
			t.Errorf("%s: an escape of the source reaches the reader", name)
		}
		for line := range strings.SplitSeq(c.Long, "\n") {
			if n := utf8.RuneCountInString(line); n > maxHelp {
				t.Errorf("%s: a line of %d columns, more than %d: %s", name, n, maxHelp, line)
			}
		}
	}
	walk(newRoot(&app{host: layout.Default()}))
}
