package store

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"slices"
	"time"

	"bulkhead/internal/record"
	"bulkhead/internal/sqlite"
)

// errEnough ends a reading.
var errEnough = errors.New("store: enough was read")

// Recent gives the outcomes of calls that the spool still holds and that are not
// older than since, oldest first, at most max; more says that there were others.
// With an audit those that it has taken are not there any more.
func (p Spool) Recent(ctx context.Context, since time.Time, max int) (out []record.Record, more bool, err error) {
	err = p.s.View(ctx, func(t *Tx) error {
		return t.Query("SELECT body FROM spool ORDER BY last DESC", func(row []sqlite.Value) error {
			lines := bytes.Split(sqlite.Blob(row[0]), []byte("\n"))
			for _, text := range slices.Backward(lines) {
				var r record.Record
				if err := json.Unmarshal(text, &r); err != nil {
					return err
				}
				if r.Time.Before(since) {
					return errEnough
				}
				if r.Verdict == record.Started { // its outcome is there as well
					continue
				}
				if len(out) == max {
					more = true
					return errEnough
				}
				out = append(out, r)
			}
			return nil
		})
	})
	if errors.Is(err, errEnough) {
		err = nil
	}
	slices.Reverse(out)
	return out, more, err
}
