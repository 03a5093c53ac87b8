package main

import (
	"fmt"
	"strconv"
	"strings"

	"bulkhead/internal/wire"
)

// checkMetrics writes what the checks of a team found in the Prometheus text format
// (https://prometheus.io/docs/instrumenting/exposition_formats/).
func checkMetrics(c *wire.Checks) string {
	var b strings.Builder
	team := `team=` + strconv.Quote(c.Team)
	metric := func(name, kind, help string) {
		fmt.Fprintf(&b, "# HELP %s %s\n# TYPE %s %s\n", name, help, name, kind)
	}
	metric("bulkhead_checks_total", "counter", "Checks of the running team since the warden began.")
	fmt.Fprintf(&b, "bulkhead_checks_total{%s} %d\n", team, c.Checks)
	metric("bulkhead_drift_alerts_total", "counter", "Things that were found not to hold any more, since the warden began.")
	fmt.Fprintf(&b, "bulkhead_drift_alerts_total{%s} %d\n", team, c.Alerts)
	if c.Checks > 0 {
		metric("bulkhead_check_time_seconds", "gauge", "When the team was last checked.")
		fmt.Fprintf(&b, "bulkhead_check_time_seconds{%s} %d\n", team, c.Last.Unix())
		metric("bulkhead_statements_held", "gauge", "Statements of prove that held at the last check.")
		fmt.Fprintf(&b, "bulkhead_statements_held{%s} %d\n", team, c.Held)
	}
	metric("bulkhead_drift", "gauge", "1 for each thing that does not hold.")
	for _, d := range c.Broken {
		fmt.Fprintf(&b, "bulkhead_drift{%s,agent=%q,statement=%q} 1\n", team, d.Agent, d.Statement)
	}
	metric("bulkhead_fenced", "gauge", "1 for each agent that is fenced because of drift.")
	for _, name := range c.Fenced {
		fmt.Fprintf(&b, "bulkhead_fenced{%s,agent=%q} 1\n", team, name)
	}
	if len(c.Heard) > 0 {
		metric("bulkhead_notices_total", "counter", "Notices of agents to their operator that the warden heard since it began.")
		for _, h := range c.Heard {
			if h.Notices != nil {
				fmt.Fprintf(&b, "bulkhead_notices_total{%s,agent=%q} %d\n", team, h.Agent, h.Notices.Count)
			}
		}
		metric("bulkhead_outbox_messages", "gauge", "Messages in the outbox of an agent's gateway, which wait for the adapter.")
		for _, h := range c.Heard {
			if h.Outbox != nil {
				fmt.Fprintf(&b, "bulkhead_outbox_messages{%s,agent=%q} %d\n", team, h.Agent, h.Outbox.Waiting)
			}
		}
		metric("bulkhead_messages_lost_total", "counter", "Messages that neither adapter nor outbox took, as the warden heard since it began; their agent was told.")
		for _, h := range c.Heard {
			if h.Outbox != nil && h.Outbox.Lost != nil {
				fmt.Fprintf(&b, "bulkhead_messages_lost_total{%s,agent=%q} %d\n", team, h.Agent, h.Outbox.Lost.Count)
			}
		}
	}
	return b.String()
}
