package main

import (
	"context"
	"fmt"
	"strings"

	"github.com/spf13/cobra"

	"bulkhead/internal/terminal"
	"bulkhead/internal/wire"
)

func newEvidenceKeyCommand(a *app) *cobra.Command {
	var all bool
	c := &cobra.Command{
		Use:   "key",
		Short: "Print the public key that evidence is signed with",
		Long: `Print the public key that this host's warden signs evidence with, as PEM. The warden
makes it at its first use; its private half never leaves the host.`,
		Example: `  sudo bulkhead evidence key > key.pem
  sudo bulkhead evidence key --all > keys.pem`,
		Args: cobra.NoArgs,
		RunE: func(c *cobra.Command, _ []string) error {
			k, err := a.evidenceKeys(c.Context(), wire.VerbEvidenceKeys)
			if err != nil {
				return err
			}
			if a.json {
				return a.printJSON(k)
			}
			fmt.Fprint(a.out, pemOf(k, all))
			return nil
		},
	}
	c.Flags().BoolVar(&all, "all", false, "also print the keys that signed before the last rotations")
	c.AddCommand(&cobra.Command{
		Use:   "rotate",
		Short: "Sign with a new key from now on",
		Long: `Make a new key and sign with it from now on. The private half of the former is gone;
its public half is kept, so that what it signed can be checked.`,
		Example: `  sudo bulkhead evidence key rotate`,
		Args:    cobra.NoArgs,
		RunE: func(c *cobra.Command, _ []string) error {
			k, err := a.evidenceKeys(c.Context(), wire.VerbEvidenceRotate)
			if err != nil {
				return err
			}
			if a.json {
				return a.printJSON(k)
			}
			fmt.Fprintf(a.out, "Evidence is signed with key %s from now on; %d former keys are kept.\n", terminal.Line(k.Keys[0].ID), len(k.Keys)-1)
			a.next("hand the new key to those who check: `sudo bulkhead evidence key > key.pem`")
			return nil
		},
	})
	return c
}

// evidenceKeys gives the warden's public keys, of which there is at least one.
func (a *app) evidenceKeys(ctx context.Context, verb string) (*wire.EvidenceKeys, error) {
	var k wire.EvidenceKeys
	if err := a.client().Call(ctx, verb, struct{}{}, &k, a.progress); err != nil {
		return nil, err
	}
	if len(k.Keys) == 0 {
		return nil, badInput("the warden gave no key", "use the bulkhead program of the warden's build")
	}
	return &k, nil
}

func pemOf(k *wire.EvidenceKeys, all bool) string {
	var b strings.Builder
	for _, one := range k.Keys {
		if all || one.Current {
			b.WriteString(terminal.Text(one.PEM))
		}
	}
	return b.String()
}
