// Command peers starts and loads what msgbench compares with and what needs a
// client library: NATS JetStream, PostgreSQL and RabbitMQ. It is a module of
// its own, so that none of these come near the programs' dependencies.
//
//	peers start nats|postgres|rabbitmq DIR   prints the address, serves until standard input ends
//	peers send KIND ADDRESS SENDERS BATCH SECONDS
//
// Every one of them has a message on disk (fsync) before it answers. DIR is on
// the disk that is measured. NATS is in this program; the other two are
// Debian's packages postgresql and rabbitmq-server, run as an id without rights
// on loopback or a unix socket. msgbench runs all of this.
package main

import (
	"errors"
	"fmt"
	"io"
	"os"
	"strconv"
	"time"

	"bulkhead/bench/load"
)

// peer is one thing to send to.
type peer struct {
	start  func(dir string) (address string, stop func(), err error)
	sender func(address string, batch int) func() (load.Send, error)
}

var peers = map[string]peer{
	"nats":        {startNATS, sendNATS},
	"nats-atomic": {nil, sendNATSAtomic}, // the same server
	"postgres":    {startPostgres, sendPostgres},
	"rabbitmq":    {startRabbitMQ, sendRabbitMQ},
}

func main() {
	if err := run(os.Args[1:]); err != nil {
		fmt.Fprintln(os.Stderr, "peers:", err)
		os.Exit(1)
	}
}

func run(args []string) error {
	switch {
	case len(args) == 3 && args[0] == "start" && peers[args[1]].start != nil:
		address, stop, err := peers[args[1]].start(args[2])
		if err != nil {
			return err
		}
		fmt.Println(address)
		_, err = io.Copy(io.Discard, os.Stdin)
		stop()
		return err
	case len(args) == 6 && args[0] == "send" && peers[args[1]].sender != nil:
		senders, err1 := strconv.Atoi(args[3])
		batch, err2 := strconv.Atoi(args[4])
		seconds, err3 := strconv.ParseFloat(args[5], 64)
		if err := errors.Join(err1, err2, err3); err != nil {
			return err
		}
		return load.Run(senders, batch, time.Duration(seconds*float64(time.Second)), peers[args[1]].sender(args[2], batch))
	}
	return errors.New("usage: peers start KIND DIR | peers send KIND ADDRESS SENDERS BATCH SECONDS")
}
