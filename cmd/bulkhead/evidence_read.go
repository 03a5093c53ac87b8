package main

import (
	"bufio"
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"os"

	"github.com/spf13/cobra"

	"bulkhead/internal/attest"
	"bulkhead/internal/attest/page"
	"bulkhead/internal/client"
	"bulkhead/internal/terminal"
	"bulkhead/internal/wire"
)

// keyFlag is on every command that reads evidence.
func keyFlag(c *cobra.Command, to *string) *cobra.Command {
	c.Flags().StringVar(to, "key", "", "trust the public keys in this PEM file, instead of this host's; needs no warden")
	return c
}

func newEvidenceVerifyCommand(a *app) *cobra.Command {
	var key, manifest string
	c := &cobra.Command{
		Use:   "verify FILE",
		Short: "Check the signature of evidence, and say what it is about",
		Long: `Check that evidence was signed by a trusted key and was not changed since, and say
what it is about. Ends with 0 when it is genuine, whatever its result; with --manifest
also only when it is about that very manifest.`,
		Example: `  bulkhead evidence verify evidence.json --key key.pem
  bulkhead evidence verify evidence.json --key key.pem --manifest bulkhead.yaml`,
		Args: cobra.ExactArgs(1),
		RunE: func(c *cobra.Command, args []string) error {
			o, err := a.openEvidence(c.Context(), args[0], key)
			if err != nil {
				return err
			}
			if err := sameManifest(o, manifest); err != nil {
				return err
			}
			if a.json {
				return a.printJSON(map[string]any{
					"schemaVersion": 1, "genuine": true, "keyid": o.KeyID, "result": o.Statement.Predicate.Result,
					"team": o.Statement.Predicate.Evidence.Team, "time": o.Statement.Predicate.Evidence.Time, "subject": o.Statement.Subject,
				})
			}
			fmt.Fprintln(a.out, "The evidence is genuine: it is signed by a trusted key, and unchanged.")
			a.showEvidenceHead(o)
			return nil
		},
	}
	c.Flags().StringVar(&manifest, "manifest", "", "also demand that it is about this manifest")
	return keyFlag(c, &key)
}

// sameManifest compares a manifest with the one that evidence is about.
func sameManifest(o *attest.Opened, path string) error {
	if path == "" {
		return nil
	}
	raw, err := os.ReadFile(path) // #nosec G304 -- what the operator names
	if err != nil {
		return badInput("the manifest cannot be read: "+err.Error(), "name a file")
	}
	sum := sha256.Sum256(raw)
	for _, r := range o.Statement.Subject {
		if r.Name == "manifest" && r.Digest["sha256"] == hex.EncodeToString(sum[:]) {
			return nil
		}
	}
	return &client.Error{What: "the evidence is genuine, but about another manifest than " + path, Mend: "make new evidence: `sudo bulkhead evidence make`", Exit: wire.ExitFailed}
}

func newEvidenceShowCommand(a *app) *cobra.Command {
	var key string
	return keyFlag(&cobra.Command{
		Use:     "show FILE",
		Short:   "Show what evidence says, in short; --json prints the whole statement",
		Example: `  sudo bulkhead evidence show evidence.json`,
		Args:    cobra.ExactArgs(1),
		RunE: func(c *cobra.Command, args []string) error {
			o, err := a.openEvidence(c.Context(), args[0], key)
			if err != nil {
				return err
			}
			if a.json {
				return a.printJSON(o.Statement)
			}
			return a.showEvidence(o)
		},
	}, &key)
}

func (a *app) showEvidenceHead(o *attest.Opened) {
	e := &o.Statement.Predicate.Evidence
	fmt.Fprintf(a.out, "  result   %s\n  team     %s\n  time     %s\n  kernel   %s\n  build    %s\n  key      %s\n", o.Statement.Predicate.Result,
		terminal.Line(e.Team), e.Time.UTC().Format("2006-01-02 15:04:05 UTC"), terminal.Line(e.Kernel), terminal.Line(e.Build), o.KeyID)
	for _, r := range o.Statement.Subject {
		fmt.Fprintf(a.out, "  about    %s sha256:%s\n", terminal.Line(r.Name), terminal.Line(r.Digest["sha256"]))
	}
}

func (a *app) showEvidence(o *attest.Opened) error {
	seen, err := o.Statement.Predicate.Evidence.Seen()
	if err != nil {
		return &client.Error{What: err.Error(), Mend: "use the bulkhead program of the build that made it", Exit: wire.ExitFailed, Err: err}
	}
	p := &o.Statement.Predicate
	fmt.Fprintf(a.out, "Evidence of team %s: %s\n", terminal.Line(p.Evidence.Team), p.Result)
	a.showEvidenceHead(o)
	v := &seen.Verify
	fmt.Fprintf(a.out, "\n%d attacks: %d denied, %d succeeded, %d unproven, %d not run\n", v.Attacks, v.Denied, v.Succeeded, v.Unproven, v.NotRun)
	fmt.Fprintf(a.out, "%d controls: %d bit, %d not run\n", v.Controls.Run, v.Controls.Bit, v.Controls.NotRun)
	fmt.Fprintf(a.out, "%d statements: %d hold, %d do not\n", seen.Prove.Held+seen.Prove.Failed, seen.Prove.Held, seen.Prove.Failed)
	for _, list := range []struct {
		head  string
		names []string
	}{{"Failed:", p.FailedTests}, {"Not run:", p.WarnedTests}, {"Not covered:", p.Evidence.NotCovered}} {
		if len(list.names) > 0 {
			fmt.Fprintln(a.out, "\n"+list.head)
		}
		for _, n := range list.names {
			fmt.Fprintln(a.out, "  "+terminal.Line(n))
		}
	}
	a.next("the whole of it as a page: `bulkhead evidence report FILE > evidence.html`")
	return nil
}

func newEvidenceReportCommand(a *app) *cobra.Command {
	var key string
	return keyFlag(&cobra.Command{
		Use:   "report FILE",
		Short: "Write evidence as one HTML page",
		Long: `Check evidence and write it to standard output as one HTML page: the matrix of
attacks, the proofs with their premises, and what is not covered. The page fetches
nothing, runs nothing, and prints well.`,
		Example: `  sudo bulkhead evidence report evidence.json > evidence.html`,
		Args:    cobra.ExactArgs(1),
		RunE: func(c *cobra.Command, args []string) error {
			o, err := a.openEvidence(c.Context(), args[0], key)
			if err != nil {
				return err
			}
			w := bufio.NewWriter(a.out)
			if err := page.Write(w, o); err != nil {
				return err
			}
			return w.Flush()
		},
	}, &key)
}

func newEvidenceDiffCommand(a *app) *cobra.Command {
	var key string
	return keyFlag(&cobra.Command{
		Use:   "diff OLD NEW",
		Short: "Show in what two pieces of evidence differ",
		Long: `Check two pieces of evidence and show in what they differ: what they are about, how
each test ended, which destinations and limits were read. Ends with 1 when something
that passed in the old one does not pass in the new one.`,
		Example: `  sudo bulkhead evidence diff monday.json tuesday.json`,
		Args:    cobra.ExactArgs(2),
		RunE: func(c *cobra.Command, args []string) error {
			var of [2]*attest.Opened
			for i, name := range args {
				var err error
				if of[i], err = a.openEvidence(c.Context(), name, key); err != nil {
					return err
				}
			}
			list, err := attest.Differences(of[0].Statement, of[1].Statement)
			if err != nil {
				return err
			}
			return a.showDifferences(list)
		},
	}, &key)
}

func (a *app) showDifferences(list []attest.Difference) error {
	worse := 0
	for _, d := range list {
		if d.Worse {
			worse++
		}
	}
	if a.json {
		if err := a.printJSON(map[string]any{"schemaVersion": 1, "worse": worse, "differences": list}); err != nil {
			return err
		}
	} else {
		t := table{head: []string{"WHAT", "BEFORE", "AFTER"}}
		for _, d := range list {
			paint := ""
			if d.Worse {
				paint = red
			}
			t.add(cell{d.What, paint}, plain(orDash(d.Before)), cell{orDash(d.After), paint})
		}
		if len(list) > 0 {
			t.write(a.out, a.colour)
			fmt.Fprintln(a.out)
		}
		fmt.Fprintf(a.out, "%d differences, %d of them for the worse\n", len(list), worse)
	}
	if worse > 0 {
		return exitCode(wire.ExitFailed)
	}
	return nil
}
