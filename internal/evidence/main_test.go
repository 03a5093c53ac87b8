package evidence

import (
	"context"
	"os"
	"testing"

	"bulkhead/internal/cgroup"
)

// starterArg makes the test's binary start a decoy host, and be killed.
const starterArg = "start-decoy-host"

// TestMain lets the test's own binary be a decoy host, as the warden is.
func TestMain(m *testing.M) {
	if len(os.Args) > 1 && os.Args[1] == DecoyArg {
		DecoyMain()
	}
	if len(os.Args) > 2 && os.Args[1] == starterArg {
		d := &DecoyHost{Programs: os.Args[2], FirstID: 900_000_000, Scratch: "/run/bulkhead/decoy", CgroupRoot: cgroup.RootName}
		_, _ = d.Controls(context.Background(), Attacks())
		os.Exit(0)
	}
	os.Exit(m.Run())
}
