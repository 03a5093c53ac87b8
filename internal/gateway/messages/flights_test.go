package messages

import (
	"testing"
	"testing/synctest"
	"time"

	"bulkhead/internal/adapter/client"
)

// TestWhatIsNotAnsweredInTimeIsGivenUp: a connection is, when one send over it
// was not answered in time, and not before; others are not.
func TestWhatIsNotAnsweredInTimeIsGivenUp(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		slow, quick := &client.Agent{}, &client.Agent{}
		given := make(chan *client.Agent, 2)
		var f flights
		f.trip = func(c *client.Agent) { given <- c }
		f.end(f.begin(quick)) // its timer comes, and finds nothing of it
		time.Sleep(answerTimeout / 2)
		late := f.begin(slow)
		for range 4 { // each in time
			n := f.begin(quick)
			time.Sleep(answerTimeout / 5)
			f.end(n)
		}
		time.Sleep(answerTimeout/5 - time.Millisecond)
		synctest.Wait()
		if len(given) != 0 {
			t.Fatal("given up too early")
		}
		time.Sleep(time.Millisecond)
		synctest.Wait()
		if len(given) != 1 || <-given != slow {
			t.Fatal("it was not given up, or another was")
		}
		f.end(late)
		time.Sleep(3 * answerTimeout)
		synctest.Wait()
		f.mu.Lock()
		defer f.mu.Unlock()
		if len(given) != 0 || f.armed {
			t.Errorf("%d were given up; a timer runs: %v", len(given), f.armed)
		}
	})
}
