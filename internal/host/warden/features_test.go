package warden

import (
	"strings"
	"testing"

	"bulkhead/internal/host/doctor"
)

func TestOnlyLayersThatMayBeMissingAreAccepted(t *testing.T) {
	if got := notAcceptable([]string{"pod", "quota"}, doctor.Features()); len(got) != 0 {
		t.Errorf("%q", got)
	}
	for _, bad := range []string{"foo", "", "POD", "egress", "account"} {
		got := notAcceptable([]string{"pod", bad}, doctor.Features())
		if len(got) != 1 || !strings.Contains(got[0], "quota, pod") {
			t.Errorf("%q: %q", bad, got)
		}
	}
}
