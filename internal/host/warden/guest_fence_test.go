package warden

import (
	"errors"
	"sync"
	"testing"
	"time"

	"bulkhead/internal/layout"
	"bulkhead/internal/wire"
)

func aGuest(name string) *guest {
	g := &guest{agentRun: &agentRun{}}
	g.Place = layout.Default().Agent("pair", name)
	return g
}

// However a start and a fence meet, nothing that was started outlives the
// fence's kill: the fence of the guest alone, or of all of its team.
func TestNothingStartsAfterAFencesKill(t *testing.T) {
	for name, fence := range map[string]func(*guests, *guest){
		"of one": func(_ *guests, g *guest) { g.fence.Store(&wire.Fence{}) },
		"of all": func(b *guests, _ *guest) { b.fence.Store(&wire.Fence{}) },
	} {
		t.Run(name, func(t *testing.T) {
			for range 500 {
				b, g := &guests{}, aGuest("app")
				var mu sync.Mutex
				runs := false // what the kernel would say
				var all sync.WaitGroup
				for range 3 { // dialer, launcher, gateway
					all.Go(func() {
						_ = g.unlessFenced(b, func() error {
							time.Sleep(20 * time.Microsecond) // a start takes a while
							mu.Lock()
							defer mu.Unlock()
							runs = true
							return nil
						})
					})
				}
				all.Go(func() {
					fence(b, g)
					_, err := g.killFenced(func(*guest) error {
						mu.Lock()
						defer mu.Unlock()
						runs = false
						return nil
					})
					if err != nil {
						t.Error(err)
					}
				})
				all.Wait()
				if runs {
					t.Fatal("something runs behind a fence")
				}
			}
		})
	}
}

// A start that hangs does not keep the fence from killing: that is what ends it.
func TestAFenceKillsAStartThatHangs(t *testing.T) {
	b, g := &guests{}, aGuest("app")
	killed, began, done := make(chan struct{}), make(chan struct{}), make(chan error)
	go func() {
		done <- g.unlessFenced(b, func() error {
			close(began)
			<-killed
			return errors.New("the launcher has gone")
		})
	}()
	<-began
	g.fence.Store(&wire.Fence{})
	once := sync.OnceFunc(func() { close(killed) })
	if _, err := g.killFenced(func(*guest) error { once(); return nil }); err != nil {
		t.Fatal(err)
	}
	if err := <-done; err == nil {
		t.Error("the start went on")
	}
}

// A removal and a fence that meet: either the guest stays and is fenced, or the
// fence hears that it goes. Never both, and never neither.
func TestAFencedGuestIsNotRemoved(t *testing.T) {
	for range 2000 {
		b, g := &guests{}, aGuest("app")
		var gone, told bool
		var all sync.WaitGroup
		all.Go(func() { gone = g.remove(b) == nil })
		all.Go(func() {
			g.fence.Store(&wire.Fence{})
			told, _ = g.killFenced(func(*guest) error { return nil })
		})
		all.Wait()
		if gone != told {
			t.Fatalf("removed: %t, and the fence was told so: %t", gone, told)
		}
	}
	b, g := &guests{}, aGuest("app")
	b.fence.Store(&wire.Fence{})
	if g.remove(b) == nil {
		t.Error("it is removed while all guests are fenced")
	}
}
