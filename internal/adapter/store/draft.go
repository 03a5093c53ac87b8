package store

import (
	"bytes"
	"crypto/rand"
	"encoding/hex"
	"fmt"
	"regexp"
	"strings"
	"sync"

	"bulkhead/internal/adapter/allowed"
	"bulkhead/internal/deny"
	"bulkhead/internal/jsonscan"
)

var channelForm = sync.OnceValue(func() *regexp.Regexp { return regexp.MustCompile(`^[a-z0-9][a-z0-9_.-]{0,63}$`) })

// maxName bounds the names of agents, channels and types, in bytes.
const maxName = 64

// isType says whether t matches ^[a-z][a-z0-9_]{0,63}$.
func isType(t Type) bool {
	if len(t) == 0 || len(t) > maxName || t[0] < 'a' || t[0] > 'z' {
		return false
	}
	for i := range len(t) {
		if c := t[i]; (c < 'a' || c > 'z') && (c < '0' || c > '9') && c != '_' {
			return false
		}
	}
	return true
}

// kept for ever, whatever the retention is.
func kept(t Type) bool {
	return t == TaskAssignment || t == PolicyDecision || t == PolicyUpdate || t == GovernanceDirective
}

// notice types come from System only.
func notice(t Type) bool { return t == DeliveryFailed || t == DeadLettered || t == ChannelDecided }

// key is an idempotency key: the 16 bytes of a UUID.
type key [16]byte

func parseKey(s string) (k key, ok bool) {
	if len(s) != 36 || s[8] != '-' || s[13] != '-' || s[18] != '-' || s[23] != '-' {
		return k, false
	}
	var digits [32]byte
	n := copy(digits[:], s[:8])
	n += copy(digits[n:], s[9:13])
	n += copy(digits[n:], s[14:18])
	n += copy(digits[n:], s[19:23])
	copy(digits[n:], s[24:])
	_, err := hex.Decode(k[:], digits[:])
	return k, err == nil
}

func (k key) String() string {
	h := hex.EncodeToString(k[:])
	return h[:8] + "-" + h[8:12] + "-" + h[12:16] + "-" + h[16:20] + "-" + h[20:]
}

// newKey makes a random UUID (RFC 9562, version 4).
func newKey() key {
	var k key
	_, _ = rand.Read(k[:]) // never fails (crypto/rand)
	k[6], k[8] = k[6]&0x0f|0x40, k[8]&0x3f|0x80
	return k
}

func rankOf(p Priority) (int64, bool) {
	switch p {
	case Low:
		return 0, true
	case Normal, "":
		return 1, true
	case High:
		return 2, true
	}
	return 0, false
}

func priority(rank int64) Priority {
	return []Priority{Low, Normal, High}[min(max(rank, 0), 2)]
}

// checked is a draft whose form is right.
type checked struct {
	Draft
	key  key
	rank int64
}

// check looks at the form of a draft, names every failing field and copies
// the body, which belongs to the caller. What policy says comes later. read: the
// body was read as JSON already.
func check(from string, d *Draft, read bool) (checked, *deny.Reason) {
	c := checked{Draft: *d}
	if len(d.Body) > MaxBody {
		return c, &deny.Reason{
			Layer: deny.LayerMessages, Code: deny.MessageTooLarge, What: allowed.What(from, d),
			Why:  fmt.Sprintf("the body has %d bytes, the most is %d", len(d.Body), MaxBody),
			Mend: "put the content into a shared workspace and send where it is",
		}
	}
	var bad []deny.Field
	fail := func(name, why string) { bad = append(bad, deny.Field{Name: name, Why: why}) }
	var ok bool
	if c.key, ok = parseKey(d.IdempotencyKey); !ok {
		fail("idempotency_key", "a UUID is needed, e.g. 1b4e28ba-2fa1-11d2-883f-0016d3cca427")
	}
	switch {
	case d.To == "" && d.Channel == "":
		fail("to", "one of to and channel is needed")
	case d.To != "" && d.Channel != "":
		fail("channel", "only one of to and channel may be set")
	case d.Channel != "" && !channelForm().MatchString(d.Channel):
		fail("channel", "not the name of a channel; to write to one agent set to")
	case len(d.To) > maxName || strings.ContainsAny(d.To, "@+ \x00"):
		fail("to", "not the name of an agent")
	case d.To == from && from != "":
		fail("to", "an agent cannot write to itself")
	}
	switch {
	case !isType(d.Type):
		fail("type", "must match ^[a-z][a-z0-9_]{0,63}$")
	case notice(d.Type):
		fail("type", "only the adapter sends this type")
	}
	if c.rank, ok = rankOf(d.Priority); !ok {
		fail("priority", "must be low, normal or high")
	}
	if d.ReplyTo > 1<<62 {
		fail("reply_to_sequence_id", "no such message")
	}
	if len(d.Body) == 0 {
		fail("body", "a JSON value is needed")
	} else if !read && !jsonscan.Valid(d.Body) {
		fail("body", "not a JSON value")
	}
	if bad != nil {
		return c, invalid(allowed.What(from, d), bad)
	}
	c.Body = bytes.Clone(d.Body)
	return c, nil
}
