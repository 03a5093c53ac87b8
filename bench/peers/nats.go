package main

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"strconv"
	"sync/atomic"
	"time"

	"github.com/nats-io/nats-server/v2/server"
	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"bulkhead/bench/load"
)

const stream, subject = "bench", "bench.messages"

// startNATS is a JetStream server on loopback that syncs every write.
func startNATS(dir string) (string, func(), error) {
	s, err := server.NewServer(&server.Options{
		Host: "127.0.0.1", Port: server.RANDOM_PORT, NoSigs: true, NoLog: true,
		JetStream: true, StoreDir: dir, SyncAlways: true, JetStreamMaxStore: 8 << 30, JetStreamMaxMemory: 64 << 20,
	})
	if err != nil {
		return "", nil, err
	}
	go s.Start()
	if !s.ReadyForConnections(10 * time.Second) {
		return "", nil, errors.New("NATS does not answer")
	}
	return s.ClientURL(), func() { s.Shutdown(); s.WaitForShutdown() }, nil
}

// fresh makes the stream empty, once for each process of senders.
func fresh(address string) error {
	nc, err := nats.Connect(address)
	if err != nil {
		return err
	}
	defer nc.Close()
	js, err := jetstream.New(nc)
	if err != nil {
		return err
	}
	ctx, cancel := context.WithTimeout(context.Background(), 30*time.Second)
	defer cancel()
	_ = js.DeleteStream(ctx, stream) // it may not be there yet
	_, err = js.CreateStream(ctx, jetstream.StreamConfig{Name: stream, Subjects: []string{subject}, Storage: jetstream.FileStorage, AllowAtomicPublish: true})
	return err
}

func sendNATS(address string, batch int) func() (load.Send, error) {
	first := true
	return func() (load.Send, error) {
		if first {
			if err := fresh(address); err != nil {
				return nil, err
			}
			first = false
		}
		nc, err := nats.Connect(address)
		if err != nil {
			return nil, err
		}
		js, err := jetstream.New(nc, jetstream.WithPublishAsyncMaxPending(batch))
		if err != nil {
			return nil, err
		}
		body := []byte(load.Body)
		return func() error {
			if batch == 1 {
				_, err := js.Publish(context.Background(), subject, body)
				return err
			}
			acks := make([]jetstream.PubAckFuture, batch)
			for i := range acks {
				if acks[i], err = js.PublishAsync(subject, body); err != nil {
					return err
				}
			}
			for _, a := range acks {
				select {
				case <-a.Ok():
				case err := <-a.Err():
					return err
				}
			}
			return nil
		}, nil
	}
}

var batches atomic.Int64

// sendNATSAtomic has the server store a batch as one, with one sync.
func sendNATSAtomic(address string, batch int) func() (load.Send, error) {
	first := true
	return func() (load.Send, error) {
		if first {
			if err := fresh(address); err != nil {
				return nil, err
			}
			first = false
		}
		nc, err := nats.Connect(address)
		if err != nil {
			return nil, err
		}
		body := []byte(load.Body)
		return func() error {
			id := strconv.FormatInt(batches.Add(1), 10)
			for i := range batch {
				m := &nats.Msg{Subject: subject, Data: body, Header: nats.Header{"Nats-Batch-Id": {id}, "Nats-Batch-Sequence": {strconv.Itoa(i + 1)}}}
				if i < batch-1 {
					if err := nc.PublishMsg(m); err != nil {
						return err
					}
					continue
				}
				m.Header.Set("Nats-Batch-Commit", "1")
				r, err := nc.RequestMsg(m, 30*time.Second)
				if err != nil {
					return err
				}
				if !bytes.Contains(r.Data, fmt.Appendf(nil, `"count":%d`, batch)) {
					return fmt.Errorf("atomic batch: %s", r.Data)
				}
			}
			return nil
		}, nil
	}
}
