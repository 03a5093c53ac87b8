package system

import (
	"strings"
	"testing"

	"bulkhead/test/system/stage"
	"bulkhead/test/system/throwaway"
)

// The warden that up starts ends again when there is nothing for it to do. It
// used to do so before its answer was sent.
func TestRefusedUpSaysWhyAndLeavesNothing(t *testing.T) {
	bin := stage.Build(t)
	throwaway.Run(t, func(t *testing.T, _ *throwaway.Host) {
		c := host(t, bin)
		write(t, c.Dir, strings.ReplaceAll(pair, "/srv/rootfs", "/srv/nothing-here"))
		before := stage.Picture(t)
		for range 3 {
			if r := c.Try(t, "up"); r.Exit == 0 || !strings.Contains(r.Stderr, "/srv/nothing-here") {
				t.Errorf("up with a missing root file system: %s", r)
			}
			stage.Ended(t)
		}
		stage.Leaves(t, before)
	})
}
