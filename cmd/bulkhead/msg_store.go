package main

import (
	"crypto/rand"
	"errors"
	"fmt"
	"io"
	"os"

	"github.com/google/renameio/v2"
	"github.com/spf13/cobra"

	"bulkhead/internal/adapter/protocol"
	"bulkhead/internal/client"
	"bulkhead/internal/deny"
	"bulkhead/internal/layout"
	"bulkhead/internal/terminal"
	"bulkhead/internal/wire"
)

type backupDoc struct {
	SchemaVersion int    `json:"schemaVersion"`
	Team          string `json:"team"`
	File          string `json:"file"`
	Bytes         int64  `json:"bytes"`
}

type metricsDoc struct {
	SchemaVersion int    `json:"schemaVersion"`
	Team          string `json:"team"`
	Metrics       string `json:"metrics"` // Prometheus text format
}

// isAdapter says whether a row of status is the team's adapter.
func isAdapter(name string) bool { return name == layout.AdapterName }

// newKey is a random UUID (RFC 9562, 5.4).
func newKey() string {
	var b [16]byte
	_, _ = rand.Read(b[:]) // never fails (crypto/rand)
	b[6], b[8] = b[6]&0x0f|0x40, b[8]&0x3f|0x80
	return fmt.Sprintf("%x-%x-%x-%x-%x", b[:4], b[4:6], b[6:8], b[8:10], b[10:])
}

func badAnswer() error {
	return &client.Error{What: "the adapter's answer is not one to this request", Mend: "use the bulkhead program of the warden's build", Exit: wire.ExitFailed}
}

// refusedMessage is an adapter's refusal of one message.
func refusedMessage(r *deny.Reason) error {
	e := &client.Error{What: r.Error(), Mend: r.Mend, Exit: wire.ExitFailed}
	switch r.Code {
	case deny.MessageInvalid, deny.MessageTooLarge, deny.MessageDuplicateKey:
		e.Exit = wire.ExitBadInput
		for _, f := range r.Fields {
			e.What += "\n  " + f.Name + ": " + f.Why
		}
	case deny.MessageNotAllowed:
		e.Exit = wire.ExitRefused
	}
	return e
}

func newBackupCommand(a *app) *cobra.Command {
	return &cobra.Command{
		Use:   "backup FILE",
		Short: "Copy everything that the adapter holds into a file, while it runs",
		Long: `Copy everything that the team's adapter holds into a file, while it goes on. The
file is an SQLite database, readable by root alone, and appears only whole.`,
		Example: "  sudo bulkhead msg backup /var/backups/seven.db",
		Args:    cobra.ExactArgs(1),
		RunE: func(c *cobra.Command, args []string) error {
			team, err := a.theTeam(c.Context())
			if err != nil {
				return err
			}
			f, res, err := a.client().Backup(c.Context(), team)
			if err != nil {
				return err
			}
			defer func() { _ = f.Close() }()
			if err := copyTo(args[0], f, res.Bytes); err != nil {
				return err
			}
			if a.json {
				return a.printJSON(backupDoc{1, team, args[0], res.Bytes})
			}
			fmt.Fprintf(a.out, "%s: %s\n", terminal.Line(args[0]), bytesOf(res.Bytes))
			return nil
		},
	}
}

// copyTo writes a new file in one step: a backup that stands there is whole.
func copyTo(path string, from *os.File, size int64) error {
	to, err := renameio.NewPendingFile(path, renameio.WithPermissions(0o600))
	if err != nil {
		return badInput(err.Error(), "name a file in a folder that exists")
	}
	defer func() { _ = to.Cleanup() }()
	n, err := io.Copy(to, io.NewSectionReader(from, 0, size))
	if err == nil && n != size {
		err = errors.New("the copy ended early")
	}
	if err == nil {
		err = to.CloseAtomicallyReplace()
	}
	if err != nil {
		return fmt.Errorf("backup: %w", err)
	}
	return nil
}

func newRepairCommand(a *app) *cobra.Command {
	return &cobra.Command{
		Use:   "repair",
		Short: "Repair what the adapter holds, without losing anything readable",
		Long: `End the team's adapter, copy everything readable of its file into a new one, and
start it again. The damaged file is kept beside it. What agents send meanwhile waits
in their outboxes.`,
		Example: "  sudo bulkhead msg repair",
		Args:    cobra.NoArgs,
		RunE: func(c *cobra.Command, _ []string) error {
			team, err := a.theTeam(c.Context())
			if err != nil {
				return err
			}
			var res wire.RepairResult
			if err := a.client().Call(c.Context(), wire.VerbMessagesRepair, wire.TeamRequest{Team: team}, &res, a.progress); err != nil {
				return err
			}
			if a.json {
				return a.printJSON(res)
			}
			fmt.Fprint(a.out, terminal.Text(res.Report))
			if !res.Ready {
				a.next("`sudo bulkhead status` says why the adapter does not run")
				return exitCode(wire.ExitFailed)
			}
			return nil
		},
	}
}

func newMetricsCommand(a *app) *cobra.Command {
	return &cobra.Command{
		Use:   "metrics",
		Short: "Print the team's numbers in the Prometheus text format",
		Long: `Print what the checks of the running team found, notices and outboxes, and depth, age,
retries, dead letters and write times of its message adapter if it has one, in the
Prometheus text format, for node_exporter's textfile collector.`,
		Example: "  sudo bulkhead metrics > /var/lib/node_exporter/bulkhead.prom",
		Args:    cobra.NoArgs,
		RunE: func(c *cobra.Command, _ []string) error {
			team, err := a.theTeam(c.Context())
			if err != nil {
				return err
			}
			var checks wire.Checks
			if err := a.client().Call(c.Context(), wire.VerbChecks, wire.TeamRequest{Team: team}, &checks, nil); err != nil {
				return err
			}
			var t protocol.Text
			if !checks.Messages {
				t.Text = checkMetrics(&checks)
			} else if err := a.client().Messages(c.Context(), team, protocol.VerbMetrics, struct{}{}, &t); err != nil {
				return err
			}
			if checks.Messages {
				t.Text = checkMetrics(&checks) + t.Text
			}
			if a.json {
				return a.printJSON(metricsDoc{1, team, t.Text})
			}
			_, err = io.WriteString(a.out, terminal.Text(t.Text))
			return err
		},
	}
}
