// Command hostile is what an agent that was taken over runs in the tests of
// test/system: each word of its command line is one attack on the host around
// the agent. It does nothing useful and must not be installed.
package main

import (
	"fmt"
	"net"
	"os"
	"strconv"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"bulkhead/internal/wire"
)

func main() {
	attacks := map[string]func([]string) error{
		"hold-log": holdLog, "inotify": inotify, "deep": deep, "freeze": freeze, "fill": fill,
		"inodes": inodes, "connections": connections, "memory": memory, "spin": spin, "pids": pids, "print": printLots, "approve": approve,
	}
	if len(os.Args) < 2 || attacks[os.Args[1]] == nil {
		fmt.Fprintln(os.Stderr, "hostile: which attack?")
		os.Exit(2)
	}
	if err := attacks[os.Args[1]](os.Args[2:]); err != nil {
		fmt.Fprintln(os.Stderr, "hostile:", err)
		os.Exit(1)
	}
}

// holdLog gives the write ends of its own output to the process behind a unix
// socket, in a frame that never ends, together with the connection itself: who
// received them holds them for good, whoever of us dies.
func holdLog(args []string) error {
	socket, protocol := args[0], args[1]
	raw, err := net.DialUnix("unix", nil, &net.UnixAddr{Name: socket, Net: "unix"})
	if err != nil {
		return err
	}
	c := wire.New(raw)
	if _, err := c.Greet(protocol, 1); err != nil {
		return err
	}
	f, err := raw.File()
	if err != nil {
		return err
	}
	rights := unix.UnixRights(int(f.Fd()), 1, 2)
	if _, _, err := raw.WriteMsgUnix([]byte{0, 0, 1, 0}, rights, nil); err != nil {
		return err
	}
	time.Sleep(200 * time.Millisecond) // until it is received
	fmt.Println("held")
	time.Sleep(time.Hour)
	return nil
}

// inotify takes as many instances as it gets and keeps them.
func inotify([]string) error {
	n := 0
	for {
		if _, err := unix.InotifyInit1(0); err != nil {
			fmt.Println("took", n, err)
			time.Sleep(3 * time.Second)
			return nil
		}
		n++
	}
}

// deep nests folders below a place.
func deep(args []string) error {
	n, err := strconv.Atoi(args[1])
	if err != nil {
		return err
	}
	if err := os.Chdir(args[0]); err != nil {
		return err
	}
	name := strings.Repeat("d", 200)
	for range n {
		if err := os.Mkdir(name, 0o700); err != nil {
			return err
		}
		if err := os.Chdir(name); err != nil {
			return err
		}
	}
	if err := os.WriteFile("bottom", nil, 0o600); err != nil {
		return err
	}
	fmt.Println("nested", n)
	return nil
}

// freeze stops every process that begins after it. It asks for no names: one that
// cannot be dumped is not to be seen in /proc (hidepid), and can be signalled.
func freeze([]string) error {
	fmt.Println("freezing")
	for {
		for pid := os.Getpid() + 1; pid < os.Getpid()+2000; pid++ {
			if _, err := os.Stat(fmt.Sprintf("/proc/self/task/%d", pid)); err != nil { // kill takes a thread for its process
				_ = unix.Kill(pid, unix.SIGSTOP)
			}
		}
	}
}

// fill writes a file until there is no room.
func fill(args []string) error {
	f, err := os.Create(args[0])
	if err != nil {
		return err
	}
	buf := make([]byte, 1<<20)
	for len(buf) > 0 {
		if _, err := f.Write(buf); err != nil {
			buf = buf[:len(buf)/2] // to the last byte
		}
	}
	fmt.Println("full")
	return f.Close()
}
