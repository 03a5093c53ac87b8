package evidence

import (
	"slices"

	"bulkhead/internal/evidence/attempt"
)

// judge turns a probe's answer (or the failure to get one) into a verdict. A
// denial needs every step to be refused in one of the expected ways.
func judge(a attempt.Answer, err error, witness []string) (Verdict, string) {
	if err != nil {
		return Unproven, "lost: " + err.Error()
	}
	switch a.Outcome {
	case attempt.Succeeded:
		return Succeeded, a.Evidence()
	case attempt.Unsupported:
		return NotRun, a.Evidence()
	case attempt.Denied:
		for _, s := range a.Steps {
			if !slices.Contains(witness, s.Refusal) {
				return Unproven, a.Evidence() + " (" + s.Refusal + " is not how this is refused)"
			}
		}
		return Denied, a.Evidence()
	}
	return Unproven, a.Evidence()
}
