package proc

import (
	"errors"
	"fmt"
	"math/bits"
	"strconv"
	"strings"
	"time"
)

// Cron is an expression of five fields: minute, hour, day of the month, month,
// day of the week (POSIX, crontab), in UTC. A field is *, a number, a range
// a-b, any of these with a step /n, or a list of those by commas; months and
// days also by their first three letters, and Sunday is 0 or 7. When day of the
// month and day of the week both say something, either will do. @hourly,
// @daily, @weekly, @monthly and @yearly stand for what they say.
type Cron struct {
	minute, hour, day, month, weekday uint64 // a bit for each value
	anyDay, anyWeekday                bool   // the field begins with *
}

const maxExpression = 256

// horizon is how far a next time is looked for: a leap year's 29 February on a
// given weekday comes within 40 years.
const horizon = 41 * 366 * 24 * time.Hour

var (
	months   = []string{"jan", "feb", "mar", "apr", "may", "jun", "jul", "aug", "sep", "oct", "nov", "dec"}
	weekdays = []string{"sun", "mon", "tue", "wed", "thu", "fri", "sat"}
	nicks    = map[string]string{"@hourly": "0 * * * *", "@daily": "0 0 * * *", "@midnight": "0 0 * * *", "@weekly": "0 0 * * 0", "@monthly": "0 0 1 * *", "@yearly": "0 0 1 1 *", "@annually": "0 0 1 1 *"}
)

// ParseCron reads an expression, and refuses one that no time fits.
func ParseCron(text string) (Cron, error) {
	var c Cron
	if len(text) > maxExpression {
		return c, fmt.Errorf("it has %d bytes; at most %d are taken", len(text), maxExpression)
	}
	text = strings.ToLower(strings.TrimSpace(text))
	if long, ok := nicks[text]; ok {
		text = long
	}
	fields := strings.Fields(text)
	if len(fields) != 5 {
		return c, fmt.Errorf("it has %d fields; five are wanted: minute hour day month weekday", len(fields))
	}
	for i, f := range []struct {
		name     string
		to       *uint64
		min, max int
		names    []string
	}{
		{"minute", &c.minute, 0, 59, nil},
		{"hour", &c.hour, 0, 23, nil},
		{"day", &c.day, 1, 31, nil},
		{"month", &c.month, 1, 12, months},
		{"weekday", &c.weekday, 0, 7, weekdays},
	} {
		var err error
		if *f.to, err = parseField(fields[i], f.min, f.max, f.names); err != nil {
			return c, fmt.Errorf("%s %q: %w", f.name, fields[i], err)
		}
	}
	if c.weekday&(1<<7) != 0 {
		c.weekday = c.weekday&^(1<<7) | 1
	}
	c.anyDay, c.anyWeekday = strings.HasPrefix(fields[2], "*"), strings.HasPrefix(fields[4], "*")
	if c.Next(time.Date(2000, 1, 1, 0, 0, 0, 0, time.UTC)).IsZero() {
		return c, errors.New("no day is like that")
	}
	return c, nil
}

func parseField(text string, low, high int, names []string) (set uint64, err error) {
	for part := range strings.SplitSeq(text, ",") {
		span, step, stepped := strings.Cut(part, "/")
		from, to := low, high
		if span != "*" {
			a, b, ranged := strings.Cut(span, "-")
			if from, err = value(a, low, high, names); err != nil {
				return 0, err
			}
			switch {
			case ranged:
				if to, err = value(b, low, high, names); err != nil {
					return 0, err
				}
			case !stepped:
				to = from
			}
		} else if high == 7 {
			to = 6 // not Sunday twice
		}
		n := 1
		if stepped {
			if n, err = value(step, 1, high, nil); err != nil {
				return 0, fmt.Errorf("the step: %w", err)
			}
		}
		if from > to {
			return 0, fmt.Errorf("%d is after %d", from, to)
		}
		for v := from; v <= to; v += n {
			set |= 1 << v
		}
	}
	return set, nil
}

func value(text string, low, high int, names []string) (int, error) {
	for i, n := range names {
		if text == n {
			return i + low, nil
		}
	}
	n, err := strconv.ParseUint(text, 10, 8)
	if err != nil || text[0] == '+' || int(n) < low || int(n) > high {
		return 0, fmt.Errorf("%.20q is not from %d to %d", text, low, high)
	}
	return int(n), nil
}

// Next gives the first time after t that fits, to the minute, in UTC; zero when
// there is none within [horizon].
func (c Cron) Next(t time.Time) time.Time {
	t = t.UTC().Truncate(time.Minute).Add(time.Minute)
	for end := t.Add(horizon); t.Before(end); {
		y, m, d := t.Date()
		switch {
		case c.month&(1<<m) == 0:
			t = time.Date(y, m+1, 1, 0, 0, 0, 0, time.UTC)
		case !c.fits(t):
			t = time.Date(y, m, d+1, 0, 0, 0, 0, time.UTC)
		case c.hour&(1<<t.Hour()) == 0:
			t = time.Date(y, m, d, t.Hour()+1, 0, 0, 0, time.UTC)
		default:
			if later := c.minute >> t.Minute() << t.Minute(); later != 0 {
				return time.Date(y, m, d, t.Hour(), bits.TrailingZeros64(later), 0, 0, time.UTC)
			}
			t = time.Date(y, m, d, t.Hour()+1, 0, 0, 0, time.UTC)
		}
	}
	return time.Time{}
}

// fits says whether the day does.
func (c Cron) fits(t time.Time) bool {
	day, weekday := c.day&(1<<t.Day()) != 0, c.weekday&(1<<t.Weekday()) != 0
	if c.anyDay || c.anyWeekday {
		return day && weekday
	}
	return day || weekday
}
