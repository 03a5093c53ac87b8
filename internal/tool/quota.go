package tool

import "context"

// Quota is what a caller's token allows of the agent's quotas, in bytes: with
// it nothing is added that would make the agent use more. 0: the agent's own
// quota alone counts.
type Quota struct {
	Memory  int64 // of mem, vec and events
	Storage int64 // of fs and db
}

type quotaKey struct{}

// WithQuota has whoever keeps something for a call know what its caller may.
func WithQuota(ctx context.Context, q Quota) context.Context {
	if q == (Quota{}) {
		return ctx
	}
	return context.WithValue(ctx, quotaKey{}, q)
}

// QuotaOf gives the quota of the call that ctx is of.
func QuotaOf(ctx context.Context) Quota {
	q, _ := ctx.Value(quotaKey{}).(Quota)
	return q
}

// Narrow gives the smaller of an agent's limit and its caller's.
func Narrow(limit, callers int64) int64 {
	if callers > 0 {
		return min(limit, callers)
	}
	return limit
}
