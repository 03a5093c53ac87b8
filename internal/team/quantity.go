package team

import (
	"errors"
	"math"
	"strconv"
	"strings"
	"time"
)

// Bounds of limits. The lower ones are what a small static program needs to
// start at all; the upper ones catch slips of the pen.
const (
	minMemory, maxMemory = 16 << 20, 1 << 40
	minMilli, maxMilli   = 10, 1024 * 1000
	minPIDs, maxPIDs     = 8, 32768
	minFiles, maxFiles   = 64, 1 << 20
	maxGrace             = 10 * time.Minute
	minDisk, maxDisk     = 16 << 20, 16 << 40
	minInodes, maxInodes = 64, 1 << 31
	minLogs, maxLogs     = 192 << 10, 1 << 40
	minConns, maxConns   = 1, 1536 // of a gateway's 4,096 descriptors each takes two
	// minBytesPerInode keeps a disk from being all tables.
	minBytesPerInode = 1 << 10
)

var units = []struct {
	suffix string
	factor float64
}{
	{"Ki", 1 << 10},
	{"Mi", 1 << 20},
	{"Gi", 1 << 30},
	{"Ti", 1 << 40},
	{"K", 1e3},
	{"k", 1e3},
	{"M", 1e6},
	{"G", 1e9},
	{"T", 1e12},
	{"", 1},
}

// bytesOf reads 512Mi, 1.5Gi, 1G or a plain number of bytes.
func bytesOf(s string) (int64, bool) {
	for _, u := range units {
		digits, ok := strings.CutSuffix(s, u.suffix)
		if !ok {
			continue
		}
		f, ok := decimal(digits)
		return capped(f * u.factor), ok
	}
	return 0, false
}

// milliOf reads cores: 1, 0.5 or 500m.
func milliOf(s string) (int64, bool) {
	factor := 1000.0
	if digits, ok := strings.CutSuffix(s, "m"); ok {
		s, factor = digits, 1
	}
	f, ok := decimal(s)
	return capped(math.Round(f * factor)), ok
}

// beyond is above every bound: what is larger is well formed, and out of range.
const beyond = math.MaxInt64 / 2

func capped(f float64) int64 {
	if f >= beyond {
		return beyond
	}
	return int64(f)
}

// maxDigits is more than any quantity needs.
const maxDigits = 40

// decimal reads digits with at most one point; no sign, exponent, hex,
// underscores or names, all of which ParseFloat would take.
func decimal(s string) (float64, bool) {
	if s == "" || len(s) > maxDigits || strings.Trim(s, "0123456789.") != "" || s[0] == '.' {
		return 0, false
	}
	f, err := strconv.ParseFloat(s, 64)
	return f, err == nil
}

func (r *reader) limits(p place) Limits {
	var l Limits
	f := r.fields(p, "limits like {memory: 512Mi, cpu: 1, pids: 256}", limitKeys...)
	l.MemoryBytes = r.quantity(f["memory"], "a size like 512Mi", "16Mi to 1Ti", bytesOf, minMemory, maxMemory)
	l.MilliCPU = r.quantity(f["cpu"], "cores like 1, 0.5 or 500m", "10m to 1024", milliOf, minMilli, maxMilli)
	l.PIDs = r.quantity(f["pids"], "a number like 256", "8 to 32768", whole, minPIDs, maxPIDs)
	l.NoFile = uint64(r.quantity(f["noFile"], "a number like 1024", "64 to 1048576", whole, minFiles, maxFiles)) // #nosec G115 -- never negative
	l.CoreBytes = uint64(r.quantity(f["core"], "a size like 0 or 64Mi", "0 to 1Ti", bytesOf, 0, maxMemory))      // #nosec G115 -- never negative
	l.DiskBytes = r.quantity(f["disk"], "a size like 2Gi", "16Mi to 16Ti", bytesOf, minDisk, maxDisk)
	l.Inodes = r.quantity(f["inodes"], "a number like 200000", "64 to 2147483648", whole, minInodes, maxInodes)
	l.LogBytes = r.quantity(f["logs"], "a size like 30Mi", "192Ki to 1Ti", bytesOf, minLogs, maxLogs)
	l.Connections = r.quantity(f["connections"], "a number like 512", "1 to 1536", whole, minConns, maxConns)
	if s, ok := r.text(f["stopGrace"], "a time like 10s"); ok {
		d, err := time.ParseDuration(s)
		if err != nil || d < 0 || d > maxGrace {
			r.fault(f["stopGrace"], "write a time from 0s to 10m, like 10s", "%q is not a time in that range", clip(s))
		}
		l.StopGrace = d
	}
	return l
}

func whole(s string) (int64, bool) {
	if s == "" || strings.Trim(s, "0123456789") != "" {
		return 0, false
	}
	n, err := strconv.ParseInt(s, 10, 64)
	if errors.Is(err, strconv.ErrRange) {
		return beyond, true
	}
	return n, err == nil
}

func (r *reader) quantity(p place, like, bounds string, read func(string) (int64, bool), low, high int64) int64 {
	s, ok := r.text(p, like)
	if !ok {
		return 0
	}
	n, ok := read(s)
	switch {
	case !ok:
		r.fault(p, "write "+like, "%q cannot be read", clip(s))
		return 0
	case n < low:
		r.fault(p, "stay within "+bounds, "%q is too small", clip(s))
		return 0
	case n > high:
		r.fault(p, "stay within "+bounds, "%q is too large", clip(s))
		return 0
	}
	return n
}
