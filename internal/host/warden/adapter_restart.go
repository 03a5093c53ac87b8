package warden

import (
	"context"
	"slices"

	"bulkhead/internal/layout"
	"bulkhead/internal/wire"
)

// splitAdapter takes the adapter, which is no agent but has a row in status, out of
// the agents that a request names.
func splitAdapter(req wire.AgentRequest) (agents wire.AgentRequest, adapter bool) {
	agents = req
	agents.Agents = slices.DeleteFunc(slices.Clone(req.Agents), func(n string) bool { return n == layout.AdapterName })
	return agents, len(agents.Agents) < len(req.Agents)
}

// notStopped says why the adapter is not stopped alone.
func notStopped(team string) error {
	return badInput(layout.AdapterName+" is no agent and is not stopped alone: without it no agent of "+team+" reaches another",
		"`bulkhead restart "+layout.AdapterName+"` starts it anew; `bulkhead stop` or `bulkhead down` ends the team")
}

// restartAdapter ends the adapter and starts it anew. What agents send
// meanwhile waits in their outboxes. The caller holds w.change.
func (w *Warden) restartAdapter(ctx context.Context, t *teamRun, say progress) error {
	a, err := w.adapterOf(t.name)
	if err != nil {
		return err
	}
	say(layout.AdapterName, "stopping")
	if err := a.halt(ctx); err != nil {
		return err
	}
	return w.startAdapter(ctx, t, say)()
}
