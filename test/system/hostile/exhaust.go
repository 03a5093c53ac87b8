package main

import (
	"bufio"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/url"
	"os"
	"path/filepath"
	"runtime"
	"strconv"
	"strings"
	"time"
)

// hold keeps what was taken until somebody ends this process.
func hold() error {
	time.Sleep(time.Hour)
	return nil
}

// inodes makes empty files in a folder until there is no room for one more.
func inodes(args []string) error {
	if err := os.MkdirAll(args[0], 0o755); err != nil {
		return err
	}
	for n := 0; ; n++ {
		f, err := os.OpenFile(filepath.Join(args[0], strconv.Itoa(n)), os.O_CREATE|os.O_EXCL, 0o600)
		if err != nil {
			fmt.Println("full after", n, err)
			return nil
		}
		_ = f.Close()
	}
}

// connections asks a server that never comes to its end, through the proxy,
// again and again until one request is refused, says how many were not and why
// that one was, and keeps them.
func connections(args []string) error {
	proxy, err := url.Parse(os.Getenv("HTTP_PROXY"))
	if err != nil {
		return err
	}
	var held []net.Conn
	for len(held) < 5000 {
		c, err := net.Dial("tcp", proxy.Host)
		if err != nil {
			return err
		}
		if _, err := fmt.Fprintf(c, "GET http://%s/ HTTP/1.1\r\nHost: %s\r\n\r\n", args[0], args[0]); err != nil {
			return err
		}
		resp, err := http.ReadResponse(bufio.NewReader(c), nil) //nolint:bodyclose // the connection is held on purpose
		if err != nil {
			return err
		}
		held = append(held, c)
		if resp.StatusCode != http.StatusOK {
			text, _ := io.ReadAll(io.LimitReader(resp.Body, 1000))
			fmt.Println("took", len(held)-1, "then", resp.Status, string(text))
			err := hold()
			runtime.KeepAlive(held)
			return err
		}
	}
	return errors.New("nothing bounds connections")
}

// memory takes and touches memory until it is killed.
func memory([]string) error {
	var all [][]byte
	for {
		block := make([]byte, 1<<20)
		for i := 0; i < len(block); i += 4096 {
			block[i] = 1
		}
		all = append(all, block)
		if len(all)%64 == 0 {
			fmt.Println("took", len(all), "MiB")
		}
	}
}

// spin burns processor time on many threads.
func spin([]string) error {
	for range 64 {
		go func() {
			for n := 0; ; n++ {
				_ = n
			}
		}()
	}
	return hold()
}

// pids starts processes until there may be no more, and keeps them.
func pids([]string) error {
	for n := 0; ; n++ {
		p, err := os.StartProcess("/bin/sleep", []string{"sleep", "100"}, &os.ProcAttr{})
		if err != nil {
			fmt.Println("started", n, err)
			return hold()
		}
		_ = p.Release()
	}
}

// printLots prints numbered lines for as long as it is let.
func printLots([]string) error {
	w := bufio.NewWriterSize(os.Stdout, 1<<16)
	pad := strings.Repeat("x", 200)
	for n := 0; ; n++ {
		if _, err := fmt.Fprintln(w, n, pad); err != nil {
			return err
		}
	}
}
