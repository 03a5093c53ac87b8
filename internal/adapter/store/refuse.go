package store

import (
	"errors"
	"strings"

	"bulkhead/internal/deny"
)

// Seconds after which trying again may help.
const (
	retryFull        = 5
	retryQuota       = 30
	retryUnavailable = 2
)

func unavailable(why string) *deny.Reason {
	return &deny.Reason{
		Layer: deny.LayerMessages, Code: deny.MessageUnavailable, What: "the message store",
		Why: why, Mend: "send it again with the same idempotency_key; nothing that was acknowledged is lost", RetryAfter: retryUnavailable,
	}
}

// failed turns an error of the database into what a caller gets.
func failed(err error) error {
	var r *deny.Reason
	if errors.As(err, &r) {
		return err
	}
	if full(err) {
		r = unavailable("the disk of the message store is full")
		r.Mend = "an operator has to make room; then send it again with the same idempotency_key"
	} else {
		r = unavailable("the message store failed: " + err.Error())
	}
	return r
}

// full tells a full disk (SQLITE_FULL) from a failing one. Both drivers put
// SQLite's own words into the error.
func full(err error) bool {
	return err != nil && strings.Contains(err.Error(), "database or disk is full")
}

func invalid(what string, fields []deny.Field) *deny.Reason {
	var names []string
	for _, f := range fields {
		names = append(names, f.Name+": "+f.Why)
	}
	return &deny.Reason{
		Layer: deny.LayerMessages, Code: deny.MessageInvalid, What: what,
		Why: strings.Join(names, "; "), Mend: "correct these fields", Fields: fields,
	}
}

func leaseOver(why string) *deny.Reason {
	return &deny.Reason{
		Layer: deny.LayerMessages, Code: deny.MessageLeaseOver, What: "the lease",
		Why: why, Mend: "receive again; take a longer lease, or extend it while working",
	}
}
