package evidence

import (
	"bulkhead/internal/deny"
	"bulkhead/internal/evidence/attempt"
)

// messageAttacks are those on layer 3a. They are made in teams that have
// messages. No probe is ever given a token that counts: what it is given, a
// captured gateway could read.
func messageAttacks() []Attack {
	return []Attack{
		{
			ID: "message.socket", Title: "speak as another agent to the adapter", Tries: "connect to the adapter's socket for the other agent",
			Attempt: "socket.connect", Layer: deny.LayerMessages, From: everywhere, At: AtOthers,
			Reference: "unix(7)",
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
			Reference: "CWE-306",
			Aim: func(from, _ Agent, _ World) attempt.Request {
				if from.Adapter == "" {
					return attempt.Request{} // its team has no messages: nothing is tried, and nothing proven
				}
				return attempt.Request{Paths: []string{from.Adapter}}
			},
			Uncontrolled: "the token's check is no mechanism of a Spec that could be switched off; that the right token opens the same socket is shown by every gateway that runs, and by test/system",
			Also:         looks(string(deny.BadToken)),
		},
	}
}
