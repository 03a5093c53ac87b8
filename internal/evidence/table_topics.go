package evidence

import (
	"path/filepath"

	"bulkhead/internal/deny"
	"bulkhead/internal/evidence/attempt"
	"bulkhead/internal/layout"
	"bulkhead/internal/topic"
)

// topicAttacks are on public topics, which an agent may publish in or read only
// where the manifest names it.
func topicAttacks() []Attack {
	// by is what the agent itself asks its gateway for, with its own token.
	by := func(id, attemptName, title, tries, right string, topics func(Agent) []string) Attack {
		return Attack{
			ID: id, Title: title, Tries: tries, Attempt: attemptName, Layer: deny.LayerTools, From: byRuntime, At: AtNobody, Reference: "CWE-862; OWASP API5:2023",
			Aim: func(from, _ Agent, _ World) attempt.Request {
				return attempt.Request{Proxy: from.Proxy, Names: topics(from)}
			},
			Absent: func(from, _ Agent) (who, why string) {
				if len(topics(from)) == 0 {
					return from.Name, "there is no public topic that it may not " + right
				}
				return "", ""
			},
			Uncontrolled: "who may is decided by the server's code, by the manifest, and by no mechanism of a Spec that could be switched off; test/system shows that the same call is taken from who is named",
			Also:         looks(string(deny.ToolNotAllowed), string(deny.BadToken)), // an agent without tools has no token
		}
	}
	return []Attack{
		serverSocket("topics.socket", layout.TopicsName, "publish and read public topics as another agent", "CWE-290; unix(7)"),
		by("topics.publish", "topics.publish", "publish in a topic that is others'", "events_publish in each public topic of its team that the manifest does not let it publish in", "publish in",
			func(a Agent) []string { return a.Unpublished }),
		by("topics.read", "topics.read", "hear what others publish", "events_subscribe and events_poll of each public topic of its team that the manifest does not let it read", "read",
			func(a Agent) []string { return a.Unread }),
		unproven("topics.token", layout.TopicsName, "publish without the gateway's token", "CWE-306", func(a Agent) string { return a.Topics }),
		{
			ID: "topics.forge", Title: "publish in others' topics, or read them, past its own gateway", Tries: "publish, subscribe, read and list at its own socket of topics, before it proved who it is and with a token that is nobody's",
			Attempt: "topics.forge", Layer: deny.LayerTools, From: byGateway, At: AtNobody, Reference: "CWE-290; CWE-306",
			Aim: func(from, _ Agent, _ World) attempt.Request {
				return attempt.Request{Paths: []string{from.Topics}, Names: append([]string{"made-up"}, bare(from.Unpublished, from.Unread)...)}
			},
			Absent:       func(from, _ Agent) (who, why string) { return withoutServer(from, from.Topics, layout.TopicsName) },
			Uncontrolled: "no probe is given a token that counts; with the gateway's own, test/system shows that the server decides by the manifest: who is named may, who is not is refused",
			Also:         looks(string(deny.BadToken), "closed"),
		},
		{
			ID: "topics.operator", Title: "change who may publish", Tries: "greet as root does at its own socket of topics, and ask for members and for another policy", Attempt: "server.operator",
			Layer: deny.LayerTools, From: byGateway, At: AtNobody, Reference: "CWE-269",
			Aim: func(from, _ Agent, _ World) attempt.Request {
				return attempt.Request{Paths: []string{from.Topics}}
			},
			Absent:       func(from, _ Agent) (who, why string) { return withoutServer(from, from.Topics, layout.TopicsName) },
			Uncontrolled: "which verbs a socket has is the server's code and no mechanism of a Spec that could be switched off; internal/hub shows that root's has them",
			Also:         looks("closed", string(deny.BadToken)),
		},
		hostFiles(Attack{
			ID: "topics.kept", Title: "read or change what was published", Tries: "open the server's database of its team, and cut it to its length", Attempt: "file.change",
			Layer: deny.LayerAccount, Reference: "CWE-276; MITRE ATT&CK T1565.001", None: noServer(layout.TopicsName),
			Aim: func(from, _ Agent, _ World) attempt.Request {
				q := attempt.Request{}
				for _, name := range topic.Files(from.Place.Team) {
					q.Paths = append(q.Paths, filepath.Join(from.host().Service(layout.TopicsName).Data(), name))
				}
				return q
			},
			Controls: rootsToWrite(),
		}),
	}
}

// bare are topics without the prefix by which agents name them.
func bare(lists ...[]string) []string {
	var out []string
	for _, list := range lists {
		for _, t := range list {
			if name, ok := topic.Cut(t); ok {
				out = append(out, name)
			}
		}
	}
	return out
}
