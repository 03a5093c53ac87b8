package layout

import "path/filepath"

// GuestsAccount owns the block of ids from which guests (agents that are made
// through front, without a runtime) take theirs. They have no accounts of their
// own (docs/decisions/0076).
const GuestsAccount = SystemAccount + "-guests"

// GuestRanges is how many ranges of [RangeSize] ids the block has. Behind them
// lies one more, from which their dialers' ids come, so that those are outside
// every range.
const GuestRanges = 4096

// GuestBlock is the size of the whole block.
const GuestBlock = (GuestRanges + 1) * RangeSize

// GuestIDs is the id plan of the guest at a place from 0 to GuestRanges-1 of the
// block that begins at first. The first id of its range stands for the account.
func GuestIDs(first uint32, at int) IDs {
	n := uint32(at) // #nosec G115 -- below GuestRanges
	base := first + n*RangeSize
	return IDs{Account: base, Base: base, Dialer: first + GuestRanges*RangeSize + n}
}

// GuestFile is what root knows of a guest, for as long as there is one.
func (a Agent) GuestFile() string { return filepath.Join(a.State, "guest.json") }

// GuestMark is there while a guest is being made or removed: what lies beside it
// without a [Agent.GuestFile] is the rest of one, and goes.
func (a Agent) GuestMark() string { return a.GuestFile() + ".new" }

// GuestsFence is there while the guests of a team are fenced.
func (h Host) GuestsFence(team string) string {
	return filepath.Join(h.Team(team), "guests-fence.json")
}
