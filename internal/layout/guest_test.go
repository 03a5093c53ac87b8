package layout

import (
	"testing"

	"pgregory.net/rapid"
)

func TestGuestsShareNoIDAndStayInTheBlock(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		first := rapid.Uint32Range(100_000, 600_100_000).Draw(t, "first")
		place := rapid.IntRange(0, GuestRanges-1)
		a, b := place.Draw(t, "a"), place.Draw(t, "b")
		x, y := GuestIDs(first, a), GuestIDs(first, b)
		for _, id := range []uint32{x.Account, x.Base, x.Last(), x.Dialer, x.Gateway(), x.Host(OwnerID), x.Engine()} {
			if id < first || id > first+GuestBlock-1 {
				t.Fatalf("%d of place %d is outside %d+%d", id, a, first, uint32(GuestBlock))
			}
		}
		if a != b && x.Overlaps(y) {
			t.Fatalf("places %d and %d share ids: %s, %s", a, b, x, y)
		}
		if x.Dialer >= x.Base && x.Dialer <= x.Last() || x.Account == x.Runtime() || x.Account == x.Gateway() || x.Account == x.Host(OwnerID) {
			t.Fatalf("two roles of a guest share an id: %s", x)
		}
	})
}
