// Command msgbench measures durable sends of 1 KiB, each on disk before it is
// acknowledged: this gateway's REST and the adapter's frames beside a bare
// append with fdatasync, Redis Streams (appendfsync always), NATS JetStream
// (sync_always), RabbitMQ (a quorum queue with confirms) and PostgreSQL (a table
// for SKIP LOCKED), in turns, on one disk. It prints tables: the rates, and the
// processor time that the servers took for a message, which other work on the
// machine changes less. It runs as root and starts everything itself: the
// adapter, a gateway and the senders under three ids, as on a host.
//
//	go -C bench/peers build -o ../../bin/
//	msgbench -bin bin [-seconds 3] [-rounds 3] [-only REST,frames] [-senders 64]
package main

import (
	"bytes"
	"errors"
	"flag"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"time"
)

// Ids of the processes.
const (
	gatewayID = 70001
	runtimeID = 70002
	adapterID = 70003
)

const token = "a token of the benchmark's own"

func main() {
	bin := flag.String("bin", "bin", "folder of the programs")
	seconds := flag.Float64("seconds", 3, "of each turn")
	rounds := flag.Int("rounds", 3, "turns of each contender; the median counts")
	only := flag.String("only", "", "names of contenders to run, with commas; empty: all")
	load := flag.String("load", "", "internal: be the senders of this kind")
	at := flag.String("at", "", "internal: where")
	senders := flag.Int("senders", 0, "run this number alone; 0: 1, 6 and 64")
	batch := flag.Int("batch", 0, "run this number in one request alone; 0: 1 and 16")
	flag.Parse()
	var err error
	if *load != "" {
		err = send(*load, *at, *senders, *batch, time.Duration(*seconds*float64(time.Second)))
	} else {
		b := bench{bin: *bin, rounds: *rounds, seconds: *seconds, senders: []int{1, 6, 64}, batches: []int{1, 16}}
		if *senders > 0 {
			b.senders = []int{*senders}
		}
		if *batch > 0 {
			b.batches = []int{*batch}
		}
		if *only != "" {
			b.only = strings.Split(*only, ",")
		}
		err = b.run()
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, "msgbench:", err)
		os.Exit(1)
	}
}

// bench is one run.
type bench struct {
	bin              string
	rounds           int
	seconds          float64
	senders, batches []int
	only             []string
	self             string // this program, where others may start it
	all              []contender
}

// contender is one thing to send to.
type contender struct {
	name    string
	send    []string // the program that sends, up to the numbers; empty: ourselves
	load    string
	id      int  // to send with; 0: root
	only    int  // 1: has no batches; more: nothing but them
	fresh   bool // started for each turn, with nothing in it; the others make their stream empty
	start   func() (server, error)
	server  server
	skip    string // why it is left out
	results map[string]*result
}

func (c *contender) leavesOut(batch int) bool {
	return c.only == 1 && batch > 1 || c.only > 1 && batch == 1
}

// result are the turns of one contender with one number of senders.
type result struct{ rate, p50, cpu []float64 }

func (b *bench) run() error {
	if os.Getuid() != 0 {
		return errors.New("it needs root, to run processes under other ids")
	}
	dir, err := os.MkdirTemp(".", "msgbench-") // the disk of the working folder, not a tmpfs
	if err != nil {
		return err
	}
	defer func() { _ = os.RemoveAll(dir) }()
	if dir, err = filepath.Abs(dir); err != nil {
		return err
	}
	run, err := os.MkdirTemp("/tmp", "msgbench") // short, and everybody gets in
	if err != nil {
		return err
	}
	defer func() { _ = os.RemoveAll(run) }()
	b.self = filepath.Join(run, "msgbench")
	if err := errors.Join(os.Chmod(run, 0o755), os.Chmod(dir, 0o755), copyFile(os.Args[0], b.self)); err != nil { // #nosec G302 -- others go through
		return err
	}
	defer b.contenders(run, dir)()
	for range b.rounds {
		for _, n := range b.senders {
			for _, batch := range b.batches {
				for i := range b.all {
					if c := &b.all[i]; c.skip == "" && (!c.leavesOut(batch)) {
						if err := b.turn(c, n, batch); err != nil {
							return fmt.Errorf("%s, %d senders: %w", c.name, n, err)
						}
					}
				}
			}
		}
	}
	b.print("1 KiB, durable, messages/s (p50 µs of a request)", func(r *result) string { return fmt.Sprintf("%.0f (%.0f)", median(r.rate), median(r.p50)) })
	fmt.Println()
	b.print("processor time of the servers, µs for a message", func(r *result) string { return fmt.Sprintf("%.0f", median(r.cpu)) })
	return nil
}

// contenders starts all that take part.
func (b *bench) contenders(run, dir string) (stop func()) {
	var stops []func()
	stop = func() {
		for _, f := range stops {
			f()
		}
	}
	peers := filepath.Join(b.bin, "peers")
	ours := func(rest bool) func() (server, error) {
		return func() (server, error) { return start(b.bin, run, dir, rest) }
	}
	peer := func(kind string) func() (server, error) {
		return func() (server, error) { return startPeer(peers, kind, dir) }
	}
	var nats server
	for _, c := range []contender{
		{name: "append + fdatasync", load: "append", only: 1, start: func() (server, error) { return server{address: dir}, nil }},
		{name: "REST", load: "rest", id: runtimeID, fresh: true, start: ours(true)},
		{name: "frames", load: "frames", id: gatewayID, fresh: true, start: ours(false)},
		{name: "Redis XADD, appendfsync always", load: "redis", start: func() (server, error) { return startRedis(dir) }},
		{name: "NATS JetStream, sync_always", send: []string{peers, "send", "nats"}, start: func() (s server, err error) {
			nats, err = startPeer(peers, "nats", dir)
			return nats, err
		}},
		{name: "NATS JetStream, sync_always, atomic batch", send: []string{peers, "send", "nats-atomic"}, only: 16, start: func() (server, error) {
			if nats.address == "" {
				return startPeer(peers, "nats", dir)
			}
			return server{address: nats.address, pids: nats.pids}, nil
		}},
		{name: "RabbitMQ, quorum queue, confirms", send: []string{peers, "send", "rabbitmq"}, start: peer("rabbitmq")},
		{name: "PostgreSQL, a table for SKIP LOCKED", send: []string{peers, "send", "postgres"}, start: peer("postgres")},
	} {
		if b.only != nil && !slices.ContainsFunc(b.only, func(s string) bool { return strings.HasPrefix(c.name, s) }) {
			continue
		}
		if !c.fresh {
			var err error
			if c.server, err = c.start(); err != nil {
				c.skip = strings.ReplaceAll(err.Error(), "\n", " ")
			} else if c.server.stop != nil {
				stops = append(stops, c.server.stop)
			}
		}
		c.results = map[string]*result{}
		b.all = append(b.all, c)
	}
	return stop
}

func key(n, batch int) string { return fmt.Sprint(n, " ", batch) }

// turn runs the senders as a process of their own and reads what they say.
func (b *bench) turn(c *contender, senders, batch int) (err error) {
	if c.fresh {
		if c.server, err = c.start(); err != nil {
			return err
		}
		defer c.server.stop()
	}
	argv := append(slices.Clone(c.send), c.server.address, strconv.Itoa(senders), strconv.Itoa(batch), fmt.Sprint(b.seconds))
	if c.send == nil {
		argv = []string{b.self, "-load", c.load, "-at", c.server.address, "-senders", strconv.Itoa(senders), "-batch", strconv.Itoa(batch), "-seconds", fmt.Sprint(b.seconds)}
	}
	cmd := exec.Command(argv[0], argv[1:]...) // #nosec G204 -- ourselves
	if c.id != 0 {
		cmd.SysProcAttr = as(c.id)
	}
	var said bytes.Buffer
	cmd.Stderr = &said
	before := used(c.server.pids)
	out, err := cmd.Output()
	if err != nil {
		return fmt.Errorf("%w: %s", err, said.String())
	}
	took := used(c.server.pids) - before
	var rate, p50 float64
	if _, err = fmt.Sscan(string(out), &rate, &p50); err != nil {
		return err
	}
	r := c.results[key(senders, batch)]
	if r == nil {
		r = &result{}
		c.results[key(senders, batch)] = r
	}
	r.rate, r.p50 = append(r.rate, rate), append(r.p50, p50)
	r.cpu = append(r.cpu, float64(took.Microseconds())/(rate*b.seconds))
	return nil
}

// print prints one table.
func (b *bench) print(title string, cell func(*result) string) {
	fmt.Printf("| %s |", title)
	for _, n := range b.senders {
		fmt.Printf(" %d |", n)
	}
	fmt.Println("\n|" + strings.Repeat("---|", len(b.senders)+1))
	for _, batch := range b.batches {
		for i := range b.all {
			c := &b.all[i]
			if c.leavesOut(batch) {
				continue
			}
			fmt.Print("| ", c.name)
			if batch > 1 {
				fmt.Printf(", %d in one request", batch)
			}
			if c.skip != "" {
				fmt.Print(" | not measured: ", c.skip, strings.Repeat(" |", len(b.senders)), "\n")
				continue
			}
			fmt.Print(" |")
			for _, n := range b.senders {
				fmt.Print(" ", cell(c.results[key(n, batch)]), " |")
			}
			fmt.Println()
		}
	}
}

func median(x []float64) float64 {
	slices.Sort(x)
	return x[len(x)/2]
}
