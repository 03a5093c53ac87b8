// Package toolname is what tools are called, and in which groups
// (docs/contracts/tools.md). It is a package of its own so that the warden,
// which reads manifests as root, does not link what serves tools.
package toolname

import (
	"slices"
	"strings"
)

// Group is a set of tools that the manifest allows or not as one.
type Group string

// The groups.
const (
	Memory  Group = "mem"
	Vectors Group = "vec"
	Files   Group = "fs"
	SQL     Group = "db"
	Network Group = "net"
	Events  Group = "events"
	Code    Group = "proc"
	Notices Group = "notify"
	Talk    Group = "msg"

	// Executions are calls that wait for a person, and several calls as one.
	Executions Group = "execution"
)

// Prefix may stand before every name.
const Prefix = "agentos."

// Version is what GET /health says of the interface to the tools.
const Version = "1"

// DefaultRate is the calls of one agent per minute, over all tools.
const DefaultRate = 100

// Groups lists every group.
func Groups() []Group {
	return []Group{Memory, Vectors, Files, SQL, Network, Events, Code, Notices, Talk, Executions}
}

// names are the tools of every group. No tool has another name, and nothing
// else may take one of these.
var names = map[Group][]string{
	Memory:  {"mem_set", "mem_get", "mem_delete", "mem_list", "mem_incr", "mem_expire", "mem_remember", "mem_recall", "mem_forget", "mem_history"},
	Vectors: {"vec_upsert", "vec_query", "vec_delete"},
	Files:   {"fs_write", "fs_read", "fs_list", "fs_delete", "fs_mkdir", "fs_stat"},
	SQL:     {"db_query", "db_transaction", "db_create_table", "db_insert", "db_update", "db_delete"},
	Network: {"net_http_get", "net_http_post", "net_http_put", "net_http_delete", "net_dns_resolve"},
	Events:  {"events_publish", "events_subscribe", "events_poll", "events_unsubscribe", "events_list_topics"},
	Code:    {"proc_execute", "proc_schedule", "proc_spawn", "proc_kill", "proc_list"},
	Notices: {"notify_send"},
	Talk:    {"msg_send", "msg_receive", "msg_ack", "msg_thread", "msg_replay", "msg_channels", "msg_channel_request"},

	Executions: {"execution_start", "execution_inspect", "execution_list", "execution_pause", "execution_resume", "execution_retry", "execution_cancel", "execution_rollback"},
}

// Of gives the tools of a group; nil when there is no such group.
func Of(g Group) []string { return slices.Clone(names[g]) }

// GroupOf gives the group of a tool by its bare name; empty: there is no such
// tool.
func GroupOf(name string) Group {
	prefix, _, _ := strings.Cut(name, "_")
	g := Group(prefix)
	if !slices.Contains(names[g], name) {
		return ""
	}
	return g
}

// Mend says what in the manifest gives an agent the tools of a group.
func Mend(g Group, agent string) string {
	switch g {
	case Talk:
		return "give agents." + agent + " channels or messages in bulkhead.yaml"
	case Code:
		return `add "proc" to agents.` + agent + ".tools.allow in bulkhead.yaml, and an image for it: tools.code.image"
	}
	return `add "` + string(g) + `" to agents.` + agent + ".tools.allow in bulkhead.yaml"
}
