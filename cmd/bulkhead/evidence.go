package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"strings"

	"github.com/google/renameio/v2"
	"github.com/spf13/cobra"

	"bulkhead/internal/attest"
	"bulkhead/internal/client"
	"bulkhead/internal/terminal"
	"bulkhead/internal/wire"
)

func newEvidenceCommand(a *app) *cobra.Command {
	c := &cobra.Command{
		Use:   "evidence",
		Short: "Sign what verify and prove saw, and check it later or elsewhere",
		Long: `Keep signed evidence of what verify and prove saw: an in-toto statement in a DSSE
envelope, signed with a key of this host's warden (docs/contracts/evidence.md). Any
DSSE verifier can check it. FILE is a path, or the id of one in the team's history.`,
		Example: `  sudo bulkhead evidence make -o evidence.json
  sudo bulkhead evidence key > key.pem
  bulkhead evidence verify evidence.json --key key.pem`,
		Args: cobra.NoArgs,
		RunE: func(c *cobra.Command, _ []string) error { return c.Help() },
	}
	c.AddCommand(newEvidenceMakeCommand(a), newEvidenceListCommand(a), newEvidenceShowCommand(a), newEvidenceVerifyCommand(a),
		newEvidenceDiffCommand(a), newEvidenceReportCommand(a), newEvidenceKeyCommand(a))
	return c
}

func newEvidenceMakeCommand(a *app) *cobra.Command {
	var noControls bool
	var to string
	c := &cobra.Command{
		Use:   "make",
		Short: "Run verify and prove, sign what they saw, and keep it",
		Long: `Run verify and prove on the whole team, sign both reports with the warden's key, and
add the file to the team's history. Ends with 1 when the result is FAILED; that is
signed and kept all the same.`,
		Example: `  sudo bulkhead evidence make
  sudo bulkhead evidence make -o evidence.json`,
		Args: cobra.NoArgs,
		RunE: func(c *cobra.Command, _ []string) error { return a.evidenceMake(c.Context(), noControls, to) },
	}
	c.Flags().BoolVar(&noControls, "no-controls", false, "skip the decoys: faster, but proves less, and the evidence says so")
	c.Flags().StringVarP(&to, "output", "o", "", "also write the file there")
	return c
}

func (a *app) evidenceMake(ctx context.Context, noControls bool, to string) error {
	team, err := a.theTeam(ctx)
	if err != nil {
		return err
	}
	var e wire.EvidenceEntry
	if err := a.client().Call(ctx, wire.VerbEvidenceMake, wire.EvidenceRequest{Team: team, NoControls: noControls}, &e, a.progress); err != nil {
		return err
	}
	if to != "" {
		raw, err := a.client().Evidence(ctx, wire.EvidenceFileRequest{Team: team, ID: e.ID})
		if err == nil {
			err = renameio.WriteFile(to, raw, 0o644)
		}
		if err != nil {
			return err
		}
	}
	if a.json {
		err = a.printJSON(e)
	} else {
		fmt.Fprintf(a.out, "Evidence %s of team %s: %s\n", terminal.Line(e.ID), terminal.Line(e.Team), e.Result)
		fmt.Fprintf(a.out, "  kept in %s\n", terminal.Line(e.Path))
		if to != "" {
			fmt.Fprintf(a.out, "  written to %s\n", terminal.Line(to))
		}
		switch e.Result {
		case attest.Passed:
			a.next("hand it out with the key: `sudo bulkhead evidence key > key.pem`")
		default:
			a.next("see what is not well: `sudo bulkhead evidence show " + terminal.Line(e.ID) + "`")
		}
	}
	if err == nil && e.Result == attest.Failed {
		err = exitCode(wire.ExitFailed)
	}
	return err
}

func newEvidenceListCommand(a *app) *cobra.Command {
	return &cobra.Command{
		Use:     "list",
		Short:   "List a team's evidence, oldest first",
		Example: `  sudo bulkhead evidence list --json`,
		Args:    cobra.NoArgs,
		RunE: func(c *cobra.Command, _ []string) error {
			team, err := a.evidenceTeam(c.Context())
			if err != nil {
				return err
			}
			var l wire.EvidenceList
			if err := a.client().Call(c.Context(), wire.VerbEvidenceList, wire.TeamRequest{Team: team}, &l, a.progress); err != nil {
				return err
			}
			if a.json {
				return a.printJSON(l)
			}
			if len(l.Evidence) == 0 {
				fmt.Fprintf(a.out, "Team %s has no evidence yet.\n", terminal.Line(l.Team))
				a.next("make some: `sudo bulkhead evidence make`")
				return nil
			}
			t := table{head: []string{"ID", "RESULT", "SIZE"}}
			for _, e := range l.Evidence {
				t.add(plain(e.ID), resultCell(e.Result), plain(bytesOf(e.Bytes)))
			}
			t.write(a.out, a.colour)
			return nil
		},
	}
}

// evidenceTeam is the team whose history is meant, which may be down.
func (a *app) evidenceTeam(ctx context.Context) (string, error) {
	if a.team != "" {
		return a.team, nil
	}
	return a.theTeam(ctx)
}

func resultCell(result string) cell {
	return cell{result, map[string]string{attest.Passed: green, attest.Warned: yellow, attest.Failed: red}[result]}
}

// evidenceBytes reads a file, or asks the warden for one of its history.
func (a *app) evidenceBytes(ctx context.Context, name string) ([]byte, error) {
	f, err := os.Open(name) // #nosec G304 -- what the operator names
	if errors.Is(err, os.ErrNotExist) && isEvidenceID(name) {
		team, terr := a.evidenceTeam(ctx)
		if terr != nil {
			return nil, terr
		}
		return a.client().Evidence(ctx, wire.EvidenceFileRequest{Team: team, ID: name})
	}
	if err != nil {
		return nil, badInput("the evidence cannot be read: "+err.Error(), "name a file, or an id that `bulkhead evidence list` shows")
	}
	defer func() { _ = f.Close() }()
	raw, err := io.ReadAll(io.LimitReader(f, attest.MaxFile+1))
	if err != nil {
		return nil, badInput("the evidence cannot be read: "+err.Error(), "name a file")
	}
	return raw, nil
}

// isEvidenceID says whether a name looks like an id of a history, and not like a
// file: TIME-RESULT-DIGEST.
func isEvidenceID(name string) bool {
	return !strings.ContainsRune(name, '/') && !strings.HasSuffix(name, ".json") && strings.Count(name, "-") == 2
}

// openEvidence checks a file against the keys in a PEM file or, without one,
// against those of this host's warden.
func (a *app) openEvidence(ctx context.Context, name, keyFile string) (*attest.Opened, error) {
	// The file first: that it cannot be read needs no warden to be told.
	raw, err := a.evidenceBytes(ctx, name)
	if err != nil {
		return nil, err
	}
	keys, err := a.trustedKeys(ctx, keyFile)
	if err != nil {
		return nil, err
	}
	o, err := attest.Open(raw, keys)
	if err == nil {
		return o, nil
	}
	mend := "do not rely on it; ask for the file again"
	if errors.Is(err, attest.ErrUnknownKey) {
		mend = "name the key of the host that signed it with --key; get it from that host, not from whoever gave you the file"
	}
	return nil, &client.Error{What: name + " is refused: " + err.Error(), Mend: mend, Exit: wire.ExitFailed, Err: err}
}

func (a *app) trustedKeys(ctx context.Context, keyFile string) (attest.Keys, error) {
	var text []byte
	if keyFile != "" {
		raw, err := os.ReadFile(keyFile) // #nosec G304 -- what the operator names
		if err != nil {
			return nil, badInput("the key cannot be read: "+err.Error(), "name a file of public keys in PEM")
		}
		text = raw
	} else {
		k, err := a.evidenceKeys(ctx, wire.VerbEvidenceKeys)
		var known *client.Error
		if client.NotRunning(err) && errors.As(err, &known) {
			return nil, &client.Error{What: known.What, Mend: "name the key with --key PEM: without it the warden is asked for this host's", Exit: known.Exit, Err: err}
		}
		if err != nil {
			return nil, err
		}
		text = []byte(pemOf(k, true))
	}
	keys, err := attest.ParsePublic(text)
	if err != nil {
		return nil, badInput(keyFile+": "+err.Error(), "name a file of public keys in PEM, as `bulkhead evidence key` writes it")
	}
	return keys, nil
}
