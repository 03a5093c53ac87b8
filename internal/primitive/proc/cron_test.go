package proc_test

import (
	"os"
	"slices"
	"strings"
	"testing"
	"time"

	"pgregory.net/rapid"

	"bulkhead/internal/primitive/proc"
)

func cronLines(t testing.TB) [][]string {
	t.Helper()
	raw, err := os.ReadFile("testdata/cron.txt")
	if err != nil {
		t.Fatal(err)
	}
	var out [][]string
	for l := range strings.Lines(string(raw)) {
		if !strings.HasPrefix(l, "#") && strings.TrimSpace(l) != "" {
			out = append(out, strings.Split(strings.TrimSuffix(l, "\n"), " | "))
		}
	}
	return out
}

func TestExpressionsNameTheirTimes(t *testing.T) {
	for _, f := range cronLines(t) {
		from, err := time.Parse(time.RFC3339, f[1])
		if err != nil {
			t.Fatal(err)
		}
		got := "error"
		if c, err := proc.ParseCron(f[0]); err == nil {
			got = c.Next(from).Format(time.RFC3339)
		}
		if got != f[2] {
			t.Errorf("%q from %s: %s, want %s", f[0], f[1], got, f[2])
		}
	}
}

// naive says whether a minute fits, by the rules as they are written, for
// expressions of numbers and *.
func naive(fields []string, t time.Time) bool {
	has := func(i, v int) bool {
		for p := range strings.SplitSeq(fields[i], ",") {
			if p == "*" || p == itoa(v) {
				return true
			}
		}
		return false
	}
	day, weekday := has(2, t.Day()), has(4, int(t.Weekday()))
	days := day && weekday
	if fields[2] != "*" && fields[4] != "*" {
		days = day || weekday
	}
	return has(0, t.Minute()) && has(1, t.Hour()) && days && has(3, int(t.Month()))
}

func itoa(n int) string {
	if n >= 10 {
		return string(rune('0'+n/10)) + string(rune('0'+n%10))
	}
	return string(rune('0' + n))
}

func TestTheNextTimeIsTheFirstThatFits(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		field := func(name string, low, high int) string {
			if rapid.Bool().Draw(t, name+" any") {
				return "*"
			}
			var list []string
			for _, n := range rapid.SliceOfN(rapid.IntRange(low, high), 1, 4).Draw(t, name) {
				list = append(list, itoa(n))
			}
			return strings.Join(list, ",")
		}
		fields := []string{field("minute", 0, 59), field("hour", 0, 23), field("day", 1, 28), field("month", 1, 12), field("weekday", 0, 6)}
		c, err := proc.ParseCron(strings.Join(fields, " "))
		if err != nil {
			t.Fatal(err)
		}
		from := time.Unix(rapid.Int64Range(0, 4e9).Draw(t, "from"), 0).UTC()
		next := c.Next(from)
		if !next.After(from) || !naive(fields, next) {
			t.Fatalf("%v from %s: %s does not fit", fields, from, next)
		}
		// No earlier one, as far as two days of minutes show it.
		begin := from.Truncate(time.Minute).Add(time.Minute)
		if d := next.Add(-48 * time.Hour); d.After(begin) {
			begin = d
		}
		for at := begin; at.Before(next); at = at.Add(time.Minute) {
			if naive(fields, at) {
				t.Fatalf("%v from %s: %s, though %s fits", fields, from, next, at)
			}
		}
	})
}

func FuzzCron(f *testing.F) {
	for _, l := range cronLines(f) {
		f.Add(l[0])
	}
	now := time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC)
	f.Fuzz(func(t *testing.T, s string) {
		c, err := proc.ParseCron(s)
		if err != nil {
			return
		}
		var last []time.Time
		for at, i := now, 0; i < 3; i++ {
			next := c.Next(at)
			if next.IsZero() || !next.After(at) || next.Second() != 0 {
				t.Fatalf("%q: after %s comes %s", s, at, next)
			}
			last, at = append(last, next), next
		}
		if !slices.IsSortedFunc(last, time.Time.Compare) {
			t.Fatal(last)
		}
	})
}
