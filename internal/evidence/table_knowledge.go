package evidence

import (
	"bulkhead/internal/deny"
	"bulkhead/internal/evidence/attempt"
)

// knowledgeAttacks are on what agents are given to read. There are no knowledge
// vaults yet: it is what a manifest mounts, and what the host says to each.
func knowledgeAttacks() []Attack {
	given := func(id, attemptName, title, tries, reference string) Attack {
		return Attack{
			ID: id, Title: title, Tries: tries, Attempt: attemptName, Layer: deny.LayerPod, From: byRuntime, At: AtNobody, Reference: reference,
			Aim: func(from, _ Agent, _ World) attempt.Request { return attempt.Request{Paths: from.ReadOnly} },
			Controls: []Control{
				{Mechanism: readOnly, Off: off(landlock), Witness: looks("EROFS")},
				{Mechanism: landlock, Off: off(readOnly), Witness: looks("EACCES")},
			},
		}
	}
	swapped := given("knowledge.swap", "knowledge.swap", "exchange what it is given to read", "move what it is given, and the first of what is in it, and remove it where it is empty", "CWE-367; CVE-2021-30465")
	swapped.Also = looks("EBUSY", "ENOTDIR") // the place of a mount, in a folder that it may write
	return []Attack{
		given("knowledge.write", "knowledge.write", "change what it is given to read", "make a file there, or open it for writing", "MITRE ATLAS AML.T0070, poisoned retrieval"),
		swapped,
		{
			ID: "knowledge.other", Title: "read what another agent is given to read", Tries: "list the host's folders that are mounted for it, and what the host wrote for it", Attempt: "file.read",
			Layer: deny.LayerAccount, From: everywhere, At: AtOthers, Reference: "CWE-200", OnlyThere: true, Aim: othersKnowledge,
			Controls: []Control{{Mechanism: mountNS, Off: off(landlock), Witness: looks("ENOENT")}},
			Also:     looks("EACCES"),
		},
		{
			ID: "knowledge.plant", Title: "change what another agent is given to read", Tries: "make a file in the same folders", Attempt: "foreign.write",
			Layer: deny.LayerAccount, From: everywhere, At: AtOthers, Reference: "MITRE ATLAS AML.T0070, poisoned retrieval", OnlyThere: true, Aim: othersKnowledge,
			Controls: append(anothers(), Control{Mechanism: landlock, Off: off(user, mountNS), Witness: looks("EACCES")}),
			Also:     looks("EPERM", "EROFS", "ENOTDIR"),
		},
	}
}

// othersKnowledge is what the target is given and the attacker is not.
func othersKnowledge(from, at Agent, _ World) attempt.Request {
	q := attempt.Request{Paths: []string{at.Place.Conf()}}
	for _, k := range at.Knowledge {
		if !within(k, from.Knowledge) {
			q.Paths = append(q.Paths, k)
		}
	}
	return q
}
