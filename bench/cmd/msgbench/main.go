// Command msgbench measures durable sends of 1 KiB: this gateway's REST, the
// adapter's frames, Redis Streams with appendfsync always, and a bare append
// with fdatasync, each on disk before it is acknowledged, in turns, on one
// disk. It prints a table. It runs as root and starts everything itself: the
// adapter, a gateway and the senders under three ids, as on a host.
//
//	msgbench -bin bin [-seconds 3] [-rounds 3]
package main

import (
	"bytes"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"io"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"time"

	"bulkhead/internal/adapter"
	"bulkhead/internal/adapter/protocol"
	"bulkhead/internal/gateway/gatewayconfig"
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
	load := flag.String("load", "", "internal: be the senders of this kind")
	at := flag.String("at", "", "internal: where")
	senders := flag.Int("senders", 1, "internal")
	batch := flag.Int("batch", 1, "internal")
	flag.Parse()
	var err error
	if *load != "" {
		err = send(*load, *at, *senders, *batch, time.Duration(*seconds*float64(time.Second)))
	} else {
		err = measure(*bin, *rounds, *seconds)
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, "msgbench:", err)
		os.Exit(1)
	}
}

// contender is one thing to send to, and the id to do it with.
type contender struct {
	name, load, at string
	id             int
	batches        []int
	skip           string // why it is left out
}

func measure(bin string, rounds int, seconds float64) error {
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
	self := filepath.Join(run, "msgbench")
	if err := errors.Join(os.Chmod(run, 0o755), copyFile(os.Args[0], self)); err != nil { // #nosec G302 -- others start the program in it
		return err
	}
	all := []contender{
		{name: "append + fdatasync", load: "append", at: dir, batches: []int{1}},
		{name: "REST", load: "rest", at: filepath.Join(run, "gateway.sock"), id: runtimeID, batches: []int{1, 16}},
		{name: "frames", load: "frames", at: filepath.Join(run, "adapter.sock"), id: gatewayID, batches: []int{1, 16}},
		{name: "Redis XADD, appendfsync always", load: "redis", batches: []int{1, 16}},
	}
	stop, err := start(bin, run, dir)
	if err != nil {
		return err
	}
	defer stop()
	stopRedis, address, err := startRedis(dir)
	if err != nil {
		all[3].skip = err.Error()
	} else {
		defer stopRedis()
		all[3].at = address
	}
	fmt.Print("| 1 KiB, durable, messages/s (p50 µs of a request) | 1 sender | 6 | 64 |\n|---|---|---|---|\n")
	type cell struct{ rate, p50 []float64 }
	table := map[string]*cell{}
	kinds := []int{1, 6, 64}
	key := func(c contender, batch, n int) string { return fmt.Sprint(c.name, batch, " ", n) }
	for range rounds {
		for _, n := range kinds {
			for _, batch := range []int{1, 16} {
				for _, c := range all {
					if c.skip != "" || !slices.Contains(c.batches, batch) {
						continue
					}
					rate, p50, err := turn(self, c, n, batch, seconds)
					if err != nil {
						return fmt.Errorf("%s, %d senders: %w", c.name, n, err)
					}
					k := key(c, batch, n)
					if table[k] == nil {
						table[k] = &cell{}
					}
					table[k].rate, table[k].p50 = append(table[k].rate, rate), append(table[k].p50, p50)
				}
			}
		}
	}
	for _, batch := range []int{1, 16} {
		for _, c := range all {
			switch {
			case !slices.Contains(c.batches, batch):
				continue
			case c.skip != "":
				fmt.Printf("| %s | not measured: %s | | |\n", c.name, c.skip)
				continue
			}
			name := c.name
			if batch > 1 {
				name += ", " + strconv.Itoa(batch) + " in one request"
			}
			fmt.Printf("| %s |", name)
			for _, n := range kinds {
				x := table[key(c, batch, n)]
				slices.Sort(x.rate)
				slices.Sort(x.p50)
				fmt.Printf(" %.0f (%.0f) |", x.rate[len(x.rate)/2], x.p50[len(x.p50)/2])
			}
			fmt.Println()
		}
	}
	return nil
}

// turn runs the senders as a process of their own and reads what they say.
func turn(self string, c contender, senders, batch int, seconds float64) (rate, p50 float64, err error) {
	cmd := exec.Command(self, "-load", c.load, "-at", c.at, "-senders", strconv.Itoa(senders), "-batch", strconv.Itoa(batch), "-seconds", fmt.Sprint(seconds)) // #nosec G204 -- ourselves
	if c.id != 0 {
		cmd.SysProcAttr = as(c.id)
	}
	var said bytes.Buffer
	cmd.Stderr = &said
	out, err := cmd.Output()
	if err != nil {
		return 0, 0, fmt.Errorf("%w: %s", err, said.String())
	}
	_, err = fmt.Sscan(string(out), &rate, &p50)
	return rate, p50, err
}

func as(id int) *syscall.SysProcAttr {
	return &syscall.SysProcAttr{Credential: &syscall.Credential{Uid: uint32(id), Gid: uint32(id)}} // #nosec G115 -- a constant
}

// start starts an adapter and a gateway as the warden does.
func start(bin, run, dir string) (stop func(), err error) {
	for _, d := range []string{"adapter", "data"} {
		id := map[string]int{"adapter": adapterID, "data": gatewayID}[d]
		if err := errors.Join(os.Mkdir(filepath.Join(dir, d), 0o700), os.Chown(filepath.Join(dir, d), id, id), os.Chmod(dir, 0o755)); err != nil { // #nosec G302 -- others go through
			return nil, err
		}
	}
	exe := filepath.Join(run, "bulkhead-serve")
	if err := copyFile(filepath.Join(bin, "bulkhead-serve"), exe); err != nil {
		return nil, err
	}
	var procs []*exec.Cmd
	stop = func() {
		for _, p := range procs {
			_ = p.Process.Kill()
			_ = p.Wait()
		}
	}
	launch := func(id int, verb string, files ...*os.File) error {
		cmd := exec.Command(exe, verb) // #nosec G204 -- our own program
		cmd.ExtraFiles, cmd.SysProcAttr, cmd.Stderr = files, as(id), os.Stderr
		if err := cmd.Start(); err != nil {
			return err
		}
		procs = append(procs, cmd)
		return nil
	}
	a, err := listen(filepath.Join(run, "adapter.sock"))
	if err != nil {
		return nil, err
	}
	o, err := listen(filepath.Join(run, "operator.sock"))
	if err != nil {
		return nil, err
	}
	cf, err := pipe(protocol.Config{
		Team: "bench", Database: filepath.Join(dir, "adapter", "messages.db"), Listeners: []string{"a", protocol.OperatorListener},
		Agents: map[string]protocol.Agent{"a": {GatewayID: gatewayID, TokenHash: protocol.HashToken(token)}},
		// A channel without other members: what is measured is the sending.
		Policy: adapter.Policy{Team: "bench", Channels: map[string][]string{"all": {"a"}}, Agents: map[string]adapter.AgentPolicy{"a": {}}},
	})
	if err != nil {
		return nil, err
	}
	if err := launch(adapterID, "adapter", cf, a, o); err != nil {
		return nil, err
	}
	g, err := listen(filepath.Join(run, "gateway.sock"))
	if err != nil {
		return stop, err
	}
	gf, err := pipe(gatewayconfig.Config{
		Team: "bench", Agent: "a", Token: token, RuntimeID: runtimeID, DialerSocket: filepath.Join(run, "none"),
		AdapterSocket: filepath.Join(run, "adapter.sock"), AdapterToken: token, Data: filepath.Join(dir, "data"),
	})
	if err != nil {
		return stop, err
	}
	return stop, launch(gatewayID, "gateway", g, gf)
}

func listen(path string) (*os.File, error) {
	l, err := net.ListenUnix("unix", &net.UnixAddr{Name: path, Net: "unix"})
	if err != nil {
		return nil, err
	}
	l.SetUnlinkOnClose(false)
	return errorsFirst(l.File())(os.Chmod(path, 0o777)) // #nosec G302 -- the servers look at ids
}

func errorsFirst(f *os.File, err error) func(error) (*os.File, error) {
	return func(more error) (*os.File, error) { return f, errors.Join(err, more) }
}

func pipe(v any) (*os.File, error) {
	r, w, err := os.Pipe()
	if err != nil {
		return nil, err
	}
	text, err := json.Marshal(v)
	if err == nil {
		_, err = w.Write(text)
	}
	return r, errors.Join(err, w.Close())
}

func copyFile(from, to string) error {
	in, err := os.Open(from) // #nosec G304 G703 -- our own programs, in our own folder
	if err != nil {
		return err
	}
	defer func() { _ = in.Close() }()
	out, err := os.OpenFile(to, os.O_CREATE|os.O_WRONLY|os.O_TRUNC, 0o755) // #nosec G302 G304 -- a program
	if err != nil {
		return err
	}
	_, err = io.Copy(out, in)
	return errors.Join(err, out.Close())
}

// startRedis starts a Redis that syncs each write, when there is one.
func startRedis(dir string) (stop func(), address string, err error) {
	exe, err := exec.LookPath("redis-server")
	if err != nil {
		return nil, "", errors.New("redis-server is not installed (Debian: redis-server)")
	}
	address = filepath.Join("/tmp", filepath.Base(dir)+".redis.sock")
	data := filepath.Join(dir, "redis")
	if err := os.Mkdir(data, 0o700); err != nil {
		return nil, "", err
	}
	cmd := exec.Command(exe, "--port", "0", "--unixsocket", address, "--dir", data, "--appendonly", "yes", "--appendfsync", "always", "--save", "") // #nosec G204 -- found in PATH
	if err := cmd.Start(); err != nil {
		return nil, "", err
	}
	stop = func() {
		_ = cmd.Process.Kill()
		_ = cmd.Wait()
		_ = os.Remove(address)
	}
	for range 500 {
		c, err := net.Dial("unix", address)
		if err == nil {
			return stop, address, c.Close()
		}
		time.Sleep(10 * time.Millisecond)
	}
	stop()
	return nil, "", errors.New(strings.Join(cmd.Args, " ") + " does not answer")
}
