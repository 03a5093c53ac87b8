package evidence

import (
	"bulkhead/internal/adapter"
	"bulkhead/internal/deny"
	"bulkhead/internal/evidence/attempt"
)

const noMessages = "it has no messages"

// messageAttacks are those on layer 3a. No probe is ever given a token that counts: what it is given, a
// captured gateway could read.
func messageAttacks() []Attack {
	member := func(from, _ Agent) (who, why string) {
		if from.Adapter == "" {
			return from.Name, noMessages
		}
		return "", ""
	}
	members := func(from, at Agent) (who, why string) {
		if who, why = member(from, at); why != "" {
			return who, why
		}
		return member(at, from)
	}
	return []Attack{
		{
			ID: "message.socket", Title: "speak as another agent to the adapter", Tries: "connect to the adapter's socket for the other agent",
			Attempt: "socket.connect", Layer: deny.LayerMessages, From: everywhere, At: AtOthers,
			Reference: "unix(7)", OnlyThere: true, None: noMessages,
			Aim: func(_, at Agent, _ World) attempt.Request {
				return attempt.Request{Paths: []string{at.Place.AdapterSocket()}}
			},
			Controls: []Control{
				{Mechanism: user, Off: off(mountNS, landlock), Witness: looks("EACCES")},
				{Mechanism: mountNS, Off: off(user, landlock), Witness: looks("ENOENT")},
			},
		},
		{
			ID: "message.token", Title: "speak to the adapter without the agent's token", Tries: "authenticate at its own socket with no token and with one that is nobody's",
			Attempt: "adapter.token", Layer: deny.LayerMessages, From: byGateway, At: AtNobody,
			Reference: "CWE-306", Absent: member,
			Aim: func(from, _ Agent, _ World) attempt.Request {
				return attempt.Request{Paths: []string{from.Adapter}}
			},
			Uncontrolled: "the token's check is no mechanism of a Spec that could be switched off; that the right token opens the same socket is shown by every gateway that runs, and by test/system",
			Also:         looks(string(deny.BadToken)),
		},
		{
			ID: "message.forge", Title: "speak as another agent in a message", Tries: "send a message whose body says that it is from the other agent, with its own token",
			Attempt: "messages.forge", Layer: deny.LayerMessages, From: byRuntime, At: AtOthers,
			Reference: "CWE-290", Absent: members,
			Aim: func(_, at Agent, _ World) attempt.Request {
				return attempt.Request{Names: []string{at.Name}}
			},
			Uncontrolled: "the sender is the one whose socket and token it is, by the adapter's code and by no mechanism of a Spec that could be switched off",
			Also:         looks(string(deny.MessageInvalid)),
		},
		{
			ID: "message.foreign", Title: "read another agent's messages", Tries: "replay the other agent's channel with the adapter, and a thread of it",
			Attempt: "messages.foreign", Layer: deny.LayerMessages, From: byRuntime, At: AtOthers,
			Reference: "CWE-639", Absent: members,
			Aim: func(_, at Agent, _ World) attempt.Request {
				// Notices are what every agent with messages may get from the adapter.
				return attempt.Request{Names: []string{adapter.Direct(adapter.System, at.Name)}}
			},
			Uncontrolled: "members are known to the adapter's code; no mechanism of a Spec could be switched off",
			Also:         looks(string(deny.MessageNotAllowed)),
		},
	}
}
