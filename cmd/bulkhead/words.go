package main

import (
	"errors"
	"fmt"
	"regexp"
	"slices"
	"strings"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"bulkhead/internal/client"
	"bulkhead/internal/wire"
)

// What cobra says of a command line, in words that help: its errors about
// arguments have no type, so they are told by how they begin.

var (
	received  = regexp.MustCompile(`^(accepts|requires) .*received (\d+)$`)
	unknown   = regexp.MustCompile(`^unknown command "(.*)" for "`)
	excluding = regexp.MustCompile(`^if any flags in the group \[.*\] are set none of the others can be; \[(.*)\] were all set$`)
	required  = regexp.MustCompile(`^required flag\(s\) (.*) not set$`)
)

// ofCommandLine takes what cobra itself says about the words after the command c.
// Anything else stays as it is.
func ofCommandLine(c *cobra.Command, err error) error {
	var known *client.Error
	if err == nil || errors.As(err, &known) {
		return err
	}
	// What cobra adds after the first line are names that are like the wrong one.
	what, _, _ := strings.Cut(err.Error(), "\n")
	see := "see `" + c.CommandPath() + " --help`"
	write := "write `" + c.UseLine() + "`; " + see
	args := c.Flags().Args()
	switch {
	case unknown.MatchString(what) && len(args) > 0 && c.HasAvailableSubCommands():
		return unknownCommand(c, args[0])
	case unknown.MatchString(what) && len(args) > 0:
		mend := "leave out " + strings.Join(args, " ")
		if c.Flags().Lookup("file") != nil {
			mend = "name the manifest with -f " + args[0]
		}
		return badInput(c.CommandPath()+" takes no arguments", mend)
	case received.MatchString(what):
		names := positional(c.Use)
		if len(args) < len(names) && (strings.HasPrefix(what, "requires") || !strings.Contains(what, "at most")) && !strings.HasPrefix(names[len(args)], "[") {
			return badInput(strings.TrimSuffix(names[len(args)], "...")+" is missing", write)
		}
		return badInput(fmt.Sprintf("%s does not take %d arguments", c.CommandPath(), len(args)), write)
	case excluding.MatchString(what):
		flags := strings.Fields(excluding.FindStringSubmatch(what)[1])
		for i, f := range flags {
			flags[i] = "--" + f
		}
		last := len(flags) - 1
		return badInput(strings.Join(flags[:last], ", ")+" and "+flags[last]+" exclude each other", "keep one of them")
	case required.MatchString(what):
		flags := strings.ReplaceAll(required.FindStringSubmatch(what)[1], `"`, "")
		return badInput("--"+strings.ReplaceAll(flags, ", ", " and --")+" is missing", write)
	case strings.HasPrefix(what, "invalid argument"):
		return badInput(what, write)
	}
	return err
}

// positional gives the arguments that a usage line names, up to its first flag
// or other form: "forward AGENT PORT..." gives AGENT and PORT...
func positional(use string) []string {
	words := strings.Fields(use)[1:]
	if i := slices.IndexFunc(words, func(w string) bool { return strings.HasPrefix(w, "-") || w == "|" }); i >= 0 {
		words = words[:i]
	}
	return words
}

// insideOnly are the commands of the program of the same name that agents have.
var insideOnly = []string{"tool", "mcp"}

// unknownCommand is the error for a word that c has no command for.
func unknownCommand(c *cobra.Command, word string) error {
	if !c.HasParent() && slices.Contains(insideOnly, word) {
		return badInput(fmt.Sprintf("%q is a command inside an agent", word), "sudo bulkhead exec AGENT -- bulkhead "+word+" --help")
	}
	mend := "see `" + c.CommandPath() + " --help`"
	c.SuggestionsMinimumDistance = 2 // letters, as cobra's own
	if word != "" {                  // which would be like every name
		if like := c.SuggestionsFor(word); len(like) > 0 {
			mend = "did you mean `" + c.CommandPath() + " " + like[0] + "`? Else " + mend
		}
	}
	return badInput(fmt.Sprintf("unknown command %.60q for %q", word, c.CommandPath()), mend)
}

// ofFlag takes what is wrong with a flag of c.
func ofFlag(c *cobra.Command, err error) error {
	see := "see `" + c.CommandPath() + " --help`"
	var bad *pflag.InvalidValueError
	if !errors.As(err, &bad) {
		return badInput(err.Error(), see)
	}
	flag := bad.GetFlag()
	what, mend := "no value", see
	switch t := flag.Value.Type(); {
	case t == "duration":
		what, mend = "no time", "write 30m or 1h"
	case t == "bool":
		what, mend = "neither true nor false", "write --"+flag.Name+", or leave it out"
	case strings.HasPrefix(t, "uint"):
		what, mend = "no number from 0 on", "write it in digits"
	case strings.HasPrefix(t, "int"):
		what, mend = "no number", "write it in digits"
	}
	return &client.Error{What: fmt.Sprintf("--%s: %.40q is %s", flag.Name, bad.GetValue(), what), Mend: mend, Exit: wire.ExitBadInput, Err: err}
}

// helpOn gives the command `bulkhead help`, and has every --help refuse a word
// that is no command: cobra shows the help of what is above it instead.
func (a *app) helpOn(root *cobra.Command) {
	show := root.HelpFunc()
	root.SetHelpFunc(func(c *cobra.Command, args []string) {
		if word := c.Flags().Arg(0); c.HasAvailableSubCommands() && c.Flags().NArg() > 0 {
			a.noHelp = unknownCommand(c, word)
			return
		}
		show(c, args)
	})
	root.SetHelpCommand(&cobra.Command{
		Use:     "help [COMMAND...]",
		Short:   "Show the help of a command",
		Long:    "Show the help of a command, as `bulkhead COMMAND --help` does.",
		Example: "  bulkhead help msg send",
		RunE: func(_ *cobra.Command, args []string) error {
			c, rest, err := root.Find(args)
			if err != nil {
				return err
			}
			if len(rest) > 0 {
				return unknownCommand(c, rest[0])
			}
			c.InitDefaultHelpFlag()
			return c.Help()
		},
	})
}
