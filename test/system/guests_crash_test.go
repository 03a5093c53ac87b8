package system

import (
	"encoding/json"
	"fmt"
	"sync"
	"testing"

	"bulkhead/test/system/stage"
	"bulkhead/test/system/throwaway"
)

// A warden that is killed while it makes and wakes guests leaves none half made:
// what front asked of it the next one is given again.
func TestGuestsSurviveTheWardensEndWhileTheyAreMade(t *testing.T) {
	bin := stage.Build(t)
	throwaway.Run(t, func(t *testing.T, _ *throwaway.Host) {
		c := host(t, bin)
		before := stage.Picture(t)
		write(t, c.Dir, withGuests)
		stage.Sh(t, "umask 077; head -c 64 /dev/urandom | base64 -w0 > /srv/admin.token")
		token := stage.Sh(t, "cat /srv/admin.token")
		c.Run(t, "up")
		const n = 12
		tokens := make([]string, n)
		var all sync.WaitGroup
		for i := range n {
			all.Go(func() {
				body := fmt.Sprintf(`{"name":"app%d","tools":{"allow":["mem"]}}`, i)
				for range 3 { // as a caller does who is told to ask again
					status, _, text := admin(t, token, "POST", "", body)
					var made guestMade
					switch {
					case status == 503 || status == 500:
						continue
					case (status == 200 || status == 201) && json.Unmarshal([]byte(text), &made) == nil && made.Token != "":
						tokens[i] = made.Token
						return
					case status == 200 && made.Mend != "":
						// The former warden had the token made, and nobody heard of it.
						body = fmt.Sprintf(`{"name":"app%d","tools":{"allow":["mem"]},"newToken":true}`, i)
						continue
					}
					t.Errorf("app%d: %d %s", i, status, text)
					return
				}
			})
		}
		for _, some := range []int{2, 6} {
			stage.Until(t, "some are made", func() bool {
				g := c.Status(t).Teams[0].Guests
				return g != nil && g.Made >= some
			})
			kill9(t, wardens(t)...)
			c.Run(t, "up")
		}
		all.Wait()
		for i := range n {
			all.Go(func() {
				if status, text := wakes(t, "mem_set", `{"key":"a","value":1}`, tokens[i]); status != 200 {
					t.Errorf("app%d: %d %s", i, status, text)
				}
			})
		}
		all.Wait()
		if g := c.Status(t).Teams[0].Guests; g == nil || g.Made != n || g.Running > 4 {
			t.Errorf("%+v", g)
		}
		if out := stage.Sh(t, "ls /var/lib/bulkhead/teams/pair/agents/*/guest.json.new 2>/dev/null || true"); out != "" {
			t.Errorf("half made: %s", out)
		}
		c.Run(t, "down", "--purge")
		stage.Leaves(t, before)
	})
}
