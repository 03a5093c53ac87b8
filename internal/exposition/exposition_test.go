package exposition

import (
	"strings"
	"sync"
	"testing"
	"time"
	"unicode/utf8"

	dto "github.com/prometheus/client_model/go"
	"github.com/prometheus/common/expfmt"
	"github.com/prometheus/common/model"
)

// parse reads the text as Prometheus does.
func parse(t *testing.T, text string) map[string]*dto.MetricFamily {
	t.Helper()
	p := expfmt.NewTextParser(model.UTF8Validation)
	out, err := p.TextToMetricFamilies(strings.NewReader(text))
	if err != nil {
		t.Fatalf("%v:\n%s", err, text)
	}
	return out
}

func TestNumbersAreThoseThatWereCounted(t *testing.T) {
	n := NewNumbers("acts_total", Counter, "What was done,\nby \\ whom.", "agent", "verb")
	var wg sync.WaitGroup
	for range 8 {
		wg.Go(func() {
			for range 100 {
				n.With("b", "send").Add(1)
				n.With("a", `qu"ote\`+"\n").Add(2)
			}
		})
	}
	wg.Wait()
	var w Writer
	n.WriteTo(&w)
	NewNumbers("empty_total", Counter, "Nothing.").WriteTo(&w)
	all := parse(t, w.String())
	f := all["acts_total"]
	if len(all) != 1 || f == nil || f.GetType() != dto.MetricType_COUNTER || f.GetHelp() != "What was done,\nby \\ whom." || len(f.GetMetric()) != 2 {
		t.Fatalf("%v", all)
	}
	for i, want := range []struct {
		agent, verb string
		v           float64
	}{{"a", "qu\"ote\\\n", 1600}, {"b", "send", 800}} {
		m := f.GetMetric()[i]
		if m.GetLabel()[0].GetValue() != want.agent || m.GetLabel()[1].GetValue() != want.verb || m.GetCounter().GetValue() != want.v {
			t.Errorf("%v, want %v", m, want)
		}
	}
}

func TestTimesFallIntoTheirBuckets(t *testing.T) {
	h := NewTimes("call_seconds", "Time of a call.", []float64{.001, .01, 1}, "verb")
	for _, d := range []time.Duration{0, time.Millisecond, time.Millisecond + 1, 10 * time.Millisecond, 2 * time.Second} {
		h.Observe(d, "send")
	}
	var w Writer
	h.WriteTo(&w)
	m := parse(t, w.String())["call_seconds"].GetMetric()[0].GetHistogram()
	if m.GetSampleCount() != 5 || m.GetSampleSum() != 2.012000001 {
		t.Errorf("%d, %v", m.GetSampleCount(), m.GetSampleSum())
	}
	for i, want := range []uint64{2, 4, 4, 5} {
		if got := m.GetBucket()[i].GetCumulativeCount(); got != want {
			t.Errorf("bucket %d holds %d, want %d", i, got, want)
		}
	}
}

func FuzzLabelsComeBackAsTheyWere(f *testing.F) {
	f.Add("plain", 1.5)
	f.Add("\"\\\n{}=,#", -1e300)
	f.Fuzz(func(t *testing.T, value string, v float64) {
		if !utf8.ValidString(value) || v != v {
			t.Skip("the format has neither")
		}
		var w Writer
		w.Family("x", Gauge, value)
		w.Sample("x", v, "l", value)
		m := parse(t, w.String())["x"]
		if got := m.GetMetric()[0]; got.GetLabel()[0].GetValue() != value || got.GetGauge().GetValue() != v {
			t.Errorf("%q %v became %v", value, v, got)
		}
	})
}
