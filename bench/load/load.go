// Package load runs senders against anything that keeps messages, and counts.
// The programs of bench/cmd/msgbench and of bench/peers share it, so that all
// are asked and timed in the same way.
package load

import (
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"time"
)

// Body is what every message holds: 1 KiB that is JSON.
var Body = `"` + strings.Repeat("x", 1022) + `"`

// Send sends one request, of one message or a batch, and returns when all of
// it is durable.
type Send func() error

// Run has n senders send for d, each made by its own call of sender. It prints
// messages per second and the median time of a request in microseconds, which
// is what msgbench reads.
func Run(n, batch int, d time.Duration, sender func() (Send, error)) error {
	sends := make([]Send, n)
	for i := range sends {
		var err error
		if sends[i], err = sender(); err != nil {
			return err
		}
	}
	var work sync.WaitGroup
	var mu sync.Mutex
	var times []time.Duration
	var failed error
	begin := time.Now()
	for _, send := range sends {
		work.Go(func() {
			var own []time.Duration
			var err error
			for err == nil && time.Since(begin) < d {
				at := time.Now()
				err = send()
				own = append(own, time.Since(at))
			}
			mu.Lock()
			defer mu.Unlock()
			times, failed = append(times, own...), errors.Join(failed, err)
		})
	}
	work.Wait()
	took := time.Since(begin)
	if failed != nil {
		return failed
	}
	slices.Sort(times)
	fmt.Println(float64(len(times)*batch)/took.Seconds(), float64(times[len(times)/2].Microseconds()))
	return nil
}
