package warden

import (
	"errors"
	"os"
	"strings"
	"testing"

	"bulkhead/internal/wire"
)

// Who is told that a decision failed while it was taken repeats it, or thinks that
// nothing was approved.
func TestWhatWasNotAnsweredMayHaveTakenEffect(t *testing.T) {
	for verb, may := range map[string]bool{
		wire.VerbDecide: true, wire.VerbRevokePermit: true, wire.VerbExecution: true,
		wire.VerbApprovals: false, wire.VerbPermits: false, wire.VerbExecutions: false,
	} {
		var f *fault
		if err := unanswered("writer", verb, os.ErrDeadlineExceeded); !errors.As(err, &f) || strings.Contains(f.Message, "may have taken effect") != may || f.Mend == "" || f.Exit != wire.ExitFailed {
			t.Errorf("%s: %+v", verb, f)
		}
	}
}
