package cgroup

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"strconv"
	"strings"
)

// cpuPeriod is the accounting period in microseconds, the kernel's default
// (Documentation/scheduler/sched-bwc.rst).
const cpuPeriod = 100_000

// noLimit is above any limit that is one: without one, version 1 says the
// largest count of bytes in whole pages (mm/page_counter.c, PAGE_COUNTER_MAX).
const noLimit = 1 << 62

// setting is one file with the value to write and the test that what was read
// back is that value.
type setting struct {
	controller, file, value string
	optional                bool // absent on kernels without swap accounting
	same                    func(got string) bool
}

func exact(v string) func(string) bool { return func(got string) bool { return got == v } }

// roundedDown takes what the kernel makes of a byte count: it rounds down to
// whole pages.
func roundedDown(want int64) func(string) bool {
	return func(got string) bool {
		n, err := strconv.ParseInt(got, 10, 64)
		page := int64(os.Getpagesize())
		return err == nil && n <= want && n > want-page
	}
}

func (g *Group) settings(l Limits) []setting {
	var out []setting
	mem, pids, quota := strconv.FormatInt(l.MemoryBytes, 10), strconv.FormatInt(l.PIDs, 10), strconv.FormatInt(l.MilliCPU*cpuPeriod/1000, 10)
	period := strconv.Itoa(cpuPeriod)
	if g.tree.unified != "" {
		if l.MemoryBytes > 0 {
			out = append(
				out, setting{"memory", "memory.max", mem, false, roundedDown(l.MemoryBytes)},
				setting{"memory", "memory.swap.max", "0", true, exact("0")},
			)
		}
		if l.MilliCPU > 0 {
			out = append(out, setting{"cpu", "cpu.max", quota + " " + period, false, exact(quota + " " + period)})
		}
	} else {
		if l.MemoryBytes > 0 {
			out = append(
				out, setting{"memory", "memory.limit_in_bytes", mem, false, roundedDown(l.MemoryBytes)},
				setting{"memory", "memory.memsw.limit_in_bytes", mem, true, roundedDown(l.MemoryBytes)},
			)
		}
		if l.MilliCPU > 0 {
			out = append(
				out, setting{"cpu", "cpu.cfs_period_us", period, false, exact(period)},
				setting{"cpu", "cpu.cfs_quota_us", quota, false, exact(quota)},
			)
		}
	}
	if l.PIDs > 0 {
		out = append(out, setting{"pids", "pids.max", pids, false, exact(pids)})
	}
	return out
}

// setLimits writes and reads back. Version 1 refuses memory+swap below memory,
// and memory above memory+swap, so raising a limit needs the other order: what
// fails is tried once more after the rest.
func (g *Group) setLimits(l Limits) error {
	var again []setting
	settings := g.settings(l)
	for _, s := range settings {
		err := write(g.file(s.controller, s.file), s.value)
		switch {
		case err == nil:
		case s.optional && errors.Is(err, fs.ErrNotExist):
		default:
			again = append(again, s)
		}
	}
	for _, s := range again {
		if err := write(g.file(s.controller, s.file), s.value); err != nil {
			return err
		}
	}
	for _, s := range settings {
		got, err := read(g.file(s.controller, s.file))
		if s.optional && errors.Is(err, fs.ErrNotExist) {
			continue
		}
		if err != nil {
			return err
		}
		if !s.same(got) {
			return fmt.Errorf("cgroup: %s of %s reads %q after %q was written: the limit is not in force", s.file, g.path, got, s.value)
		}
	}
	return nil
}

// Limits reads what is in force now. A limit that is not set reads as 0.
func (g *Group) Limits() (Limits, error) {
	var l Limits
	memFile, cpuFile := "memory.limit_in_bytes", "cpu.cfs_quota_us"
	if g.tree.unified != "" {
		memFile, cpuFile = "memory.max", "cpu.max"
	}
	for _, f := range []struct {
		controller, file string
		to               *int64
	}{{"memory", memFile, &l.MemoryBytes}, {"pids", "pids.max", &l.PIDs}, {"cpu", cpuFile, &l.MilliCPU}} {
		raw, err := read(g.file(f.controller, f.file))
		if err != nil {
			return Limits{}, err
		}
		first, _, _ := strings.Cut(raw, " ")
		if first == "max" || first == "-1" {
			continue
		}
		if *f.to, err = strconv.ParseInt(first, 10, 64); err != nil {
			return Limits{}, fmt.Errorf("cgroup: %s of %s: %w", f.file, g.path, err)
		}
		if *f.to >= noLimit {
			*f.to = 0
		}
	}
	l.MilliCPU = l.MilliCPU * 1000 / cpuPeriod
	return l, nil
}

// Memory is what the group uses now, in bytes.
func (g *Group) Memory() (int64, error) {
	name := "memory.usage_in_bytes"
	if g.tree.unified != "" {
		name = "memory.current"
	}
	raw, err := read(g.file("memory", name))
	if err != nil {
		return 0, err
	}
	n, err := strconv.ParseInt(raw, 10, 64)
	if err != nil {
		return 0, fmt.Errorf("cgroup: %s of %s: %w", name, g.path, err)
	}
	return n, nil
}

// OOMKills counts the processes that the kernel killed here for memory.
func (g *Group) OOMKills() (int64, error) {
	name := "memory.oom_control"
	if g.tree.unified != "" {
		name = "memory.events"
	}
	raw, err := read(g.file("memory", name))
	if err != nil {
		return 0, err
	}
	for line := range strings.Lines(raw) {
		if v, ok := strings.CutPrefix(strings.TrimSpace(line), "oom_kill "); ok {
			return strconv.ParseInt(v, 10, 64)
		}
	}
	return 0, fmt.Errorf("cgroup: %s of %s counts no oom_kill", name, g.path)
}

// Throttled is how many periods the group used up its processor time in
// (cpu.stat, nr_throttled).
func (g *Group) Throttled() (int64, error) {
	raw, err := read(g.file("cpu", "cpu.stat"))
	if err != nil {
		return 0, err
	}
	for line := range strings.Lines(raw) {
		if f := strings.Fields(line); len(f) == 2 && f[0] == "nr_throttled" {
			return strconv.ParseInt(f[1], 10, 64)
		}
	}
	return 0, fmt.Errorf("cgroup: cpu.stat of %s has no nr_throttled", g.path)
}
