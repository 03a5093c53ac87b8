package store

import (
	"context"
	"slices"
	"time"
)

// sweepEvery is how often what has expired is let go of when nobody asks.
const sweepEvery = time.Minute

// Expire names a function that lets go of some of what has expired, a bounded
// number of rows, and says whether there may be more. It is called in
// transactions of this package, each minute and when the quota is used up.
func (s *Store) Expire(f func(*Tx) (more bool, err error)) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.expire = append(s.expire, f)
}

// Spare has f let go of what nobody needs, the oldest first, when the agent's quota has no
// room for what is to be kept. It says whether there may be more.
func (s *Store) Spare(f func(*Tx) (more bool, err error)) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.spare = append(s.spare, f)
}

func (s *Store) spares() []func(*Tx) (bool, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	return slices.Clone(s.spare)
}

func (s *Store) expirers() []func(*Tx) (bool, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	return slices.Clone(s.expire)
}

// Sweep lets go of everything that has expired.
func (s *Store) Sweep(ctx context.Context) error {
	for _, f := range s.expirers() {
		for more := true; more; {
			if err := s.Update(ctx, func(t *Tx) (err error) { more, err = f(t); return err }); err != nil {
				return err
			}
		}
	}
	return s.Update(ctx, func(*Tx) error { return nil }) // what was counted becomes records
}

// sweep runs until the store closes.
func (s *Store) sweep() {
	tick := time.NewTicker(sweepEvery)
	defer tick.Stop()
	for {
		select {
		case <-s.stop:
			return
		case <-tick.C:
			if err := s.Sweep(context.Background()); err != nil {
				s.cfg.Log.Error("what has expired could not be let go of", "error", err)
			}
		}
	}
}
