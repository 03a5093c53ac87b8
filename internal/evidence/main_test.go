package evidence

import (
	"os"
	"testing"
)

// TestMain lets the test's own binary be a decoy host, as the warden is.
func TestMain(m *testing.M) {
	if len(os.Args) > 1 && os.Args[1] == DecoyArg {
		DecoyMain()
	}
	os.Exit(m.Run())
}
