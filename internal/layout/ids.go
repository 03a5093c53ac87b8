package layout

import "fmt"

// RangeSize is how many subordinate ids an agent owns.
const RangeSize = 65536

// Ids inside an agent's containers. They are the same for every engine. The
// host id of inside id N is base+N-1: this is how rootless Podman maps the
// subordinate range (inside 0 is the account itself), and the cell engine
// keeps to it so that files survive a change of engine.
const (
	RuntimeID = 1000 // the agent framework under shim
	GatewayID = 2000 // that agent's gateway
	ProcID    = 3000 // code run for the agent
	OwnerID   = 4000 // owns the containers' user namespaces; never mapped, no process has it
	// EngineID is what Podman runs as, and an OCI runtime finds as user 0, while
	// they make a container: an id of the range that owns nothing.
	EngineID = 5000
)

// IDs is the id plan of one agent on this host. User and group ids are equal.
type IDs struct {
	Account uint32 `json:"account"` // the Linux account's own uid
	Base    uint32 `json:"base"`    // first subordinate id, of RangeSize
	Dialer  uint32 `json:"dialer"`  // from SystemAccount's block, outside every range
}

// Host gives the host id of an inside id between 1 and RangeSize.
func (i IDs) Host(inside uint32) uint32 { return i.Base + inside - 1 }

// Runtime is the host id of the runtime.
func (i IDs) Runtime() uint32 { return i.Host(RuntimeID) }

// Gateway is the host id of the gateway.
func (i IDs) Gateway() uint32 { return i.Host(GatewayID) }

// Proc is the host id of code cells.
func (i IDs) Proc() uint32 { return i.Host(ProcID) }

// Engine is the host id that stands in for user 0 under the podman engine.
func (i IDs) Engine() uint32 { return i.Host(EngineID) }

// Last is the last host id of the range.
func (i IDs) Last() uint32 { return i.Base + RangeSize - 1 }

// Overlaps says whether two agents' ids meet anywhere.
func (i IDs) Overlaps(o IDs) bool {
	return i.Base <= o.Last() && o.Base <= i.Last() || o.Holds(i.Account) || o.Holds(i.Dialer) || i.Holds(o.Account) || i.Holds(o.Dialer)
}

// Holds says whether an id is one of them.
func (i IDs) Holds(id uint32) bool {
	return id == i.Account || id == i.Dialer || id >= i.Base && id <= i.Last()
}

func (i IDs) String() string {
	return fmt.Sprintf("account %d, range %d-%d, dialer %d", i.Account, i.Base, i.Last(), i.Dialer)
}
