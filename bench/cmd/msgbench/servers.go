package main

import (
	"bufio"
	"bytes"
	"errors"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"time"
)

// server is a started one.
type server struct {
	address string
	pids    []int // whose processor time is its, with their children's
	stop    func()
}

// startRedis starts a Redis that syncs each write, when there is one.
func startRedis(dir string) (server, error) {
	exe, err := exec.LookPath("redis-server")
	if err != nil {
		return server{}, errors.New("redis-server is not installed (Debian: redis-server)")
	}
	address := filepath.Join("/tmp", filepath.Base(dir)+".redis.sock")
	data := filepath.Join(dir, "redis")
	if err := os.Mkdir(data, 0o700); err != nil {
		return server{}, err
	}
	cmd := exec.Command(exe, "--port", "0", "--unixsocket", address, "--dir", data, "--appendonly", "yes", "--appendfsync", "always", "--save", "") // #nosec G204 -- found in PATH
	if err := cmd.Start(); err != nil {
		return server{}, err
	}
	stop := func() {
		_ = cmd.Process.Kill()
		_ = cmd.Wait()
		_ = os.Remove(address)
	}
	for range 500 {
		c, err := net.Dial("unix", address)
		if err == nil {
			return server{address, []int{cmd.Process.Pid}, stop}, c.Close()
		}
		time.Sleep(10 * time.Millisecond)
	}
	stop()
	return server{}, errors.New(strings.Join(cmd.Args, " ") + " does not answer")
}

// startPeer has the program of bench/peers start one of its kinds.
func startPeer(exe, kind, dir string) (server, error) {
	data := filepath.Join(dir, kind)
	if err := os.Mkdir(data, 0o700); err != nil {
		return server{}, err
	}
	cmd := exec.Command(exe, "start", kind, data) // #nosec G204 -- ours
	in, err1 := cmd.StdinPipe()
	out, err2 := cmd.StdoutPipe()
	var said bytes.Buffer
	cmd.Stderr = &said
	if err := errors.Join(err1, err2, cmd.Start()); err != nil {
		return server{}, fmt.Errorf("%w: build it: go -C bench/peers build -o ../../bin/", err)
	}
	address, err := bufio.NewReader(out).ReadString('\n')
	if err != nil {
		_ = cmd.Wait()
		return server{}, errors.New(strings.TrimSpace(said.String()))
	}
	stop := func() {
		_ = in.Close() // it stops what it started, and ends
		_ = cmd.Wait()
	}
	return server{strings.TrimSpace(address), []int{cmd.Process.Pid}, stop}, nil
}

// used is the processor time that processes and their descendants took.
func used(pids []int) time.Duration {
	children := map[int][]int{}
	ticks := map[int]int{}
	all, _ := filepath.Glob("/proc/[0-9]*/stat")
	for _, name := range all {
		text, err := os.ReadFile(name) // #nosec G304 -- of /proc
		if err != nil {
			continue // it has ended
		}
		pid, _ := strconv.Atoi(strings.Split(name, "/")[2])
		f := strings.Fields(string(text[bytes.LastIndexByte(text, ')')+1:])) // f[0] is field 3 of proc(5)
		parent, _ := strconv.Atoi(f[1])
		children[parent] = append(children[parent], pid)
		for _, t := range f[11:15] { // utime, stime and those of children that ended
			n, _ := strconv.Atoi(t)
			ticks[pid] += n
		}
	}
	sum := 0
	for len(pids) > 0 {
		p := pids[0]
		pids = append(pids[1:len(pids):len(pids)], children[p]...)
		sum += ticks[p]
	}
	return time.Duration(sum) * 10 * time.Millisecond // USER_HZ is 100
}
