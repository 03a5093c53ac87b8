package main

import (
	"context"
	"fmt"
	"os"

	"bulkhead/internal/adapter/protocol"
	"bulkhead/internal/adapter/store"
	"bulkhead/internal/passed"
)

// runRepair repairs a store whose adapter is stopped, and says on standard
// output what it found, in words. Its config is that of the adapter.
func runRepair(ctx context.Context) error {
	var cfg protocol.Config
	if err := passed.Config(protocol.ConfigFD, maxConfig, &cfg); err != nil {
		return err
	}
	if err := cfg.Check(); err != nil {
		return err
	}
	r, err := store.Repair(ctx, cfg.Database)
	if err != nil {
		return err
	}
	fmt.Printf("%d messages, %d deliveries and %d dead letters were read\n", r.Messages, r.Deliveries, r.Dead)
	if r.Requeued > 0 {
		fmt.Printf("%d deliveries had lost their state: they come, perhaps again\n", r.Requeued)
	}
	for _, l := range r.Lost {
		fmt.Println("lost:", l)
	}
	_, err = fmt.Fprintln(os.Stdout, "the former file is kept as", r.Damaged)
	return err
}
