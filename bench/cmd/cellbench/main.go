// Command cellbench measures what a cell costs, beside bubblewrap, on this
// machine and in one run.
//
//	cellbench -bin BIN -rootfs DIR -team TEAM -agent AGENT [-n 200]
//
// The contenders take turns, so that whatever else the machine does hits all
// of them alike; the first round of each is thrown away. What is measured is
// the time from asking to having the exit code of `true`:
//
//   - bwrap: a new process, every namespace, the same root read-only, no
//     cgroup, no seccomp filter, no Landlock
//   - warden: the running warden is asked over its socket for a new container
//     with every layer and a cgroup of its own
//   - fresh: the same, without the process that the launcher keeps prepared
//   - command: the same by a new `bulkhead run` process
//   - bare: a new process of the same program, for scale
//
// It prints a Markdown table. Trust ratios more than milliseconds.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"time"

	"bulkhead/internal/client"
	"bulkhead/internal/layout"
	"bulkhead/internal/wire"
)

// pause lets the launcher prepare the next container before the next
// contender starts, which would otherwise pay for it.
const pause = 50 * time.Millisecond

type contender struct {
	name string
	run  func(context.Context) error
	took []time.Duration
}

func main() {
	bin := flag.String("bin", "bin", "`folder` of the programs")
	rootfs := flag.String("rootfs", "", "root file system with /bin/true for bwrap, the agent's own")
	team := flag.String("team", "bench", "a team that is up")
	agent := flag.String("agent", "a", "its agent")
	n := flag.Int("n", 200, "rounds")
	flag.Parse()
	if err := measure(context.Background(), *bin, *rootfs, *team, *agent, *n); err != nil {
		fmt.Fprintln(os.Stderr, "cellbench:", err)
		os.Exit(1)
	}
}

func measure(ctx context.Context, bin, rootfs, team, agent string, n int) error {
	if n < 10 {
		return errors.New("fewer than 10 rounds say nothing: raise -n")
	}
	warden := &client.Client{Socket: layout.Default().WardenSocket()}
	command := func(name string, args ...string) func(context.Context) error {
		return func(ctx context.Context) error { return exec.CommandContext(ctx, name, args...).Run() } // #nosec G204 -- what is measured
	}
	all := []*contender{
		{name: "bare process", run: command(filepath.Join(rootfs, "bin/busybox"), "true")},
		{name: "bwrap --unshare-all", run: command("bwrap", "--unshare-all", "--ro-bind", rootfs, "/", "/bin/true")},
		{name: "cell, asked of the warden, fresh", run: func(ctx context.Context) error { return run(ctx, warden, team, agent, true) }},
		{name: "cell, asked of the warden, prepared", run: func(ctx context.Context) error { return run(ctx, warden, team, agent, false) }},
		{name: "cell, as a cold command", run: command(filepath.Join(bin, "bulkhead"), "--team", team, "run", agent, "-t=false", "--", "/bin/true")},
	}
	for round := range n + 1 {
		for _, c := range all {
			time.Sleep(pause)
			start := time.Now()
			if err := c.run(ctx); err != nil {
				return fmt.Errorf("%s: %w", c.name, err)
			}
			if round > 0 {
				c.took = append(c.took, time.Since(start))
			}
		}
	}
	base := percentile(all[1].took, 50)
	fmt.Printf("| start to exit of `true`, %d rounds | p50 ms | p90 ms | p50 / bwrap |\n|---|---|---|---|\n", n)
	for _, c := range all {
		p50 := percentile(c.took, 50)
		fmt.Printf("| %s | %.2f | %.2f | %.2f |\n", c.name, ms(p50), ms(percentile(c.took, 90)), float64(p50)/float64(base))
	}
	return nil
}

// run asks the warden for one container and waits for its end.
func run(ctx context.Context, c *client.Client, team, agent string, fresh bool) error {
	s, err := c.Start(ctx, wire.VerbRun, wire.RunRequest{Team: team, Agent: agent, Fresh: fresh, Exec: wire.ExecRequest{Argv: []string{"/bin/true"}}}, false, nil)
	if err != nil {
		return err
	}
	exited, err := s.Run(ctx, nil, io.Discard, os.Stderr)
	if err == nil && exited.Code != 0 {
		err = fmt.Errorf("exit code %d", exited.Code)
	}
	return err
}

func percentile(d []time.Duration, p int) time.Duration {
	s := slices.Sorted(slices.Values(d))
	return s[min(len(s)*p/100, len(s)-1)]
}

func ms(d time.Duration) float64 { return float64(d) / float64(time.Millisecond) }
