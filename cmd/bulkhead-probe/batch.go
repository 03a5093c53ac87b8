package main

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"runtime"
	"strings"
	"sync"
	"time"

	"golang.org/x/sys/unix"

	"bulkhead/internal/evidence/attempt"
)

// aloneArg makes the probe a child of itself that makes one attempt in a
// process of its own.
const aloneArg = "alone"

// atOnce is how many attempts are made at the same time. Most answer at once;
// the few that wait shall not wait for each other. An agent may have no more
// than 64 processes, threads included.
const atOnce = 4

// each bounds one attempt, also one of many connections on a host that is busy
// or emulated. One that takes longer is not answered for.
const each = 20 * time.Second

// answers writes one line for each attempt.
type answers struct {
	mu  sync.Mutex
	out io.Writer
	err error
}

func (w *answers) put(a attempt.Answer) {
	line, err := json.Marshal(a)
	w.mu.Lock()
	defer w.mu.Unlock()
	if err == nil {
		_, err = w.out.Write(append(line, '\n'))
	}
	w.err = errors.Join(w.err, err)
}

// performAll makes every attempt of a batch. alone says that this process is
// the child that exists for one of them.
func performAll(b attempt.Batch, alone bool, out io.Writer) error {
	w := &answers{out: out}
	var shared, apart []attempt.Request
	for _, q := range b.Attempts {
		if kinds()[q.Attempt].alone && !alone {
			apart = append(apart, q)
			continue
		}
		shared = append(shared, q)
	}
	inParallel(shared, atOnce, func(q attempt.Request) { w.put(within(q)) })
	inParallel(apart, atOnce/2, func(q attempt.Request) { w.put(performAlone(q)) })
	return w.err
}

func inParallel(list []attempt.Request, most int, do func(attempt.Request)) {
	var wait sync.WaitGroup
	slots := make(chan struct{}, most)
	for _, q := range list {
		slots <- struct{}{}
		wait.Go(func() {
			defer func() { <-slots }()
			do(q)
		})
	}
	wait.Wait()
}

// within makes one attempt on a thread of its own, which is thrown away: what
// the attempt made of its ids, capabilities or namespaces goes with it.
func within(q attempt.Request) attempt.Answer {
	done := make(chan attempt.Answer, 1)
	go func() {
		runtime.LockOSThread() // never unlocked
		done <- perform(q)
	}()
	select {
	case a := <-done:
		return a
	case <-time.After(each):
		return failed(q, fmt.Errorf("it did not end within %s", each))
	}
}

// failed is the answer of an attempt that could not be made.
func failed(q attempt.Request, err error) attempt.Answer {
	return attempt.Answer{Version: attempt.Version, Nonce: q.Nonce, Attempt: q.Attempt, Outcome: attempt.Error, Detail: err.Error()}
}

// noThread is how Go's runtime ends a process when the kernel refuses it a thread
// (runtime/os_linux.go, newosproc; errno 11 is EAGAIN).
const noThread = "failed to create new OS thread (have "

// performAlone makes one attempt in a child, for what changes a whole process.
func performAlone(q attempt.Request) attempt.Answer {
	raw, err := json.Marshal(attempt.Batch{Version: attempt.Version, Attempts: []attempt.Request{q}})
	if err != nil {
		return failed(q, err)
	}
	var out, errs bytes.Buffer
	c := exec.Command("/proc/self/exe", aloneArg) // #nosec G204 -- itself
	c.Env = []string{}
	for _, keep := range []string{"HTTPS_PROXY", "PATH"} { // what attempts read
		if v, ok := os.LookupEnv(keep); ok {
			c.Env = append(c.Env, keep+"="+v)
		}
	}
	c.Stdin, c.Stdout, c.Stderr = bytes.NewReader(raw), &out, &errs
	c.WaitDelay = time.Second
	if err := c.Start(); err != nil {
		return failed(q, fmt.Errorf("start a process for it: %w", err))
	}
	hang := time.AfterFunc(each, func() { _ = c.Process.Kill() })
	defer hang.Stop()
	if err := c.Wait(); err != nil {
		if kinds()[q.Attempt].starves && strings.Contains(errs.String(), noThread) {
			t := &trial{Request: q}
			t.step("have a thread for one child more", unix.EAGAIN)
			return attempt.Answer{Version: attempt.Version, Nonce: q.Nonce, Attempt: q.Attempt, Outcome: attempt.Denied, Errno: t.steps[0].Refusal, Steps: t.steps}
		}
		return failed(q, fmt.Errorf("its process: %w: %s", err, strings.TrimSpace(errs.String())))
	}
	a, err := attempt.ParseAnswer(out.Bytes(), q)
	if err != nil {
		return failed(q, err)
	}
	return a
}
