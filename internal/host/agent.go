package host

import (
	"bulkhead/internal/layout"
	"bulkhead/internal/team"
)

// Agent is one agent on this host: what the manifest wants, where it lives
// and which ids it has.
type Agent struct {
	Place layout.Agent
	IDs   layout.IDs
	Want  *team.Agent
	// Messages says that its team has an adapter, to which its gateway gets a
	// socket.
	Messages bool
	// Services are the host's own servers (layout.ServiceNames) to which its
	// gateway gets a socket.
	Services []string
}

// CodeImage is the image in which its gateway has code run; empty: none runs.
func (a *Agent) CodeImage() string {
	if a.Want.Tools == nil {
		return ""
	}
	return a.Want.Tools.CodeImage
}
