package tool

import "context"

// Exec runs one statement of a transaction of the gateway's store.
type Exec func(sql string, args ...any) (changed int64, err error)

// Keeper keeps what takes a call's effect back. A tool whose effect lies in the
// gateway's store gives it the Exec of that transaction; one whose effect lies outside
// gives nil and calls it before. What undo holds is the tool's.
type Keeper func(tx Exec, undo []byte) error

// MaxUndo is how much a [Keeper] keeps, in bytes; what has more is not kept.
const MaxUndo = 1 << 20

// Never is the error of taking back what cannot be, and says why. A tool that knows it
// beforehand keeps that instead of nothing.
type Never string

func (n Never) Error() string { return string(n) }

type keeperKey struct{}

// WithKeeper marks calls whose effects somebody may want back.
func WithKeeper(ctx context.Context, k Keeper) context.Context {
	return context.WithValue(ctx, keeperKey{}, k)
}

// KeeperOf gives the keeper of the call that ctx is of; nil: nobody wants its effect back.
func KeeperOf(ctx context.Context) Keeper {
	k, _ := ctx.Value(keeperKey{}).(Keeper)
	return k
}
