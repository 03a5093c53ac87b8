package main

import (
	"bulkhead/internal/exposition"
	"bulkhead/internal/wire"
)

// checkMetrics writes what the checks of a team found in the Prometheus text format
// (https://prometheus.io/docs/instrumenting/exposition_formats/).
func checkMetrics(c *wire.Checks) string {
	var w exposition.Writer
	family := func(name, kind, help string) func(v float64, labels ...string) {
		w.Family(name, kind, help)
		return func(v float64, labels ...string) { w.Sample(name, v, append([]string{"team", c.Team}, labels...)...) }
	}
	family("bulkhead_checks_total", exposition.Counter, "Checks of the running team since the warden began.")(float64(c.Checks))
	family("bulkhead_drift_alerts_total", exposition.Counter, "Things that were found not to hold any more, since the warden began.")(float64(c.Alerts))
	if c.Checks > 0 {
		family("bulkhead_check_time_seconds", exposition.Gauge, "When the team was last checked.")(float64(c.Last.Unix()))
		family("bulkhead_statements_held", exposition.Gauge, "Statements of prove that held at the last check.")(float64(c.Held))
	}
	drift := family("bulkhead_drift", exposition.Gauge, "1 for each thing that does not hold.")
	for _, d := range c.Broken {
		drift(1, "agent", d.Agent, "statement", d.Statement)
	}
	fenced := family("bulkhead_fenced", exposition.Gauge, "1 for each agent that is fenced because of drift.")
	for _, name := range c.Fenced {
		fenced(1, "agent", name)
	}
	if len(c.Heard) > 0 {
		asks := family("bulkhead_approvals_waiting", exposition.Gauge, "Calls of an agent's tools that wait for a person.")
		for _, h := range c.Heard {
			if h.Asking != nil {
				asks(float64(h.Asking.Waiting), "agent", h.Agent)
			}
		}
		notices := family("bulkhead_notices_total", exposition.Counter, "Notices of agents to their operator that the warden heard since it began.")
		for _, h := range c.Heard {
			if h.Notices != nil {
				notices(float64(h.Notices.Count), "agent", h.Agent)
			}
		}
		waiting := family("bulkhead_outbox_messages", exposition.Gauge, "Messages in the outbox of an agent's gateway, which wait for the adapter.")
		for _, h := range c.Heard {
			if h.Outbox != nil {
				waiting(float64(h.Outbox.Waiting), "agent", h.Agent)
			}
		}
		lost := family("bulkhead_messages_lost_total", exposition.Counter, "Messages that neither adapter nor outbox took, as the warden heard since it began; their agent was told.")
		for _, h := range c.Heard {
			if h.Outbox != nil && h.Outbox.Lost != nil {
				lost(float64(h.Outbox.Lost.Count), "agent", h.Agent)
			}
		}
		gaps := family("bulkhead_message_gaps_total", exposition.Counter, "Gaps in channels that cannot be filled any more, as the warden heard of agents' gateways since it began.")
		for _, h := range c.Heard {
			if h.Gaps != nil {
				gaps(float64(h.Gaps.Count), "agent", h.Agent)
			}
		}
	}
	return w.String()
}
