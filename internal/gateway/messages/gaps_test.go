package messages

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"

	"bulkhead/internal/adapter"
	"bulkhead/internal/deny"
	"bulkhead/internal/record"
)

// answered is what a receive answers.
type answered struct {
	Deliveries []adapter.Delivery `json:"deliveries"`
	Replayed   []adapter.Message  `json:"replayed"`
}

func (s *stage) got(body string) (a answered) {
	s.t.Helper()
	status, _, text := s.do("POST", "/v1/messages:receive", body)
	if err := json.Unmarshal([]byte(text), &a); err != nil || status != 200 {
		s.t.Fatalf("%d %s: %v", status, text, err)
	}
	return a
}

func (s *stage) settles(verb, body string) {
	s.t.Helper()
	if status, _, text := s.do("POST", "/v1/messages:"+verb, body); status != 207 || !strings.Contains(text, `"status":200`) {
		s.t.Fatalf("%s %s: %d %s", verb, body, status, text)
	}
}

func sequences(ms []adapter.Message) (out []uint64) {
	for _, m := range ms {
		out = append(out, m.Sequence)
	}
	return out
}

// flooded has bob write more to alice than her queue holds: 1 to n find no place.
func (s *stage) flooded(n int) {
	s.t.Helper()
	bodies := make([]string, adapter.QueueSize+n)
	for i := range bodies {
		bodies[i] = fmt.Sprint(i + 1)
	}
	s.from("bob", bodies...)
	s.up("alice")
	s.linked()
}

func TestAGapIsReplayedUntilWhatShowedItIsAcknowledged(t *testing.T) {
	s := newStage(t)
	s.flooded(3)
	const one = `{"max":1,"channel":"@alice+bob","lease":3600000000000}`
	first := s.got(one)
	if len(first.Deliveries) != 1 || first.Deliveries[0].Sequence != 4 || !slices.Equal(sequences(first.Replayed), []uint64{1, 2, 3}) || string(first.Replayed[2].Body) != "3" || first.Replayed[0].From != "bob" {
		t.Fatalf("%+v", first)
	}
	// It comes again with the delivery, over REST, as a tool and in a stream.
	s.settles("refuse", fmt.Sprintf(`{"refusals":[{"lease":%q,"delay":1}]}`, first.Deliveries[0].Lease))
	var again answered
	if err := json.Unmarshal([]byte(s.tools().Do("msg_receive", `{"max":1,"wait":20,"lease":3600,"channel":"@alice+bob"}`)), &again); err != nil || len(again.Deliveries) != 1 || again.Deliveries[0].Sequence != 4 || len(again.Replayed) != 3 {
		t.Fatalf("%+v, %v", again, err)
	}
	s.settles("refuse", fmt.Sprintf(`{"refusals":[{"lease":%q,"delay":1}]}`, again.Deliveries[0].Lease))
	ctx, cancel := context.WithCancel(t.Context())
	q, _ := http.NewRequestWithContext(ctx, "GET", s.web.URL+"/v1/messages:stream?max=1&channel=@alice%2Bbob", nil)
	r, err := http.DefaultClient.Do(q)
	if err != nil {
		t.Fatal(err)
	}
	var events []string
	lease := ""
	for in := bufio.NewScanner(r.Body); lease == "" && in.Scan(); {
		if e, ok := strings.CutPrefix(in.Text(), "event: "); ok {
			events = append(events, e)
		}
		if data, ok := strings.CutPrefix(in.Text(), "data: "); ok && events[len(events)-1] == "delivery" {
			var d adapter.Delivery
			if err := json.Unmarshal([]byte(data), &d); err != nil {
				t.Fatal(err)
			}
			lease = d.Lease
		}
	}
	cancel()
	_ = r.Body.Close()
	if diff := cmp.Diff([]string{"replayed", "replayed", "replayed", "delivery"}, events); diff != "" {
		t.Error(diff)
	}
	s.settles("ack", fmt.Sprintf(`{"leases":[%q]}`, lease))
	next := s.got(one)
	if len(next.Deliveries) != 1 || next.Deliveries[0].Sequence != 5 || len(next.Replayed) > 0 {
		t.Errorf("after the acknowledgement: %+v", next)
	}
	s.settles("ack", fmt.Sprintf(`{"leases":[%q]}`, next.Deliveries[0].Lease))
	// Neither end of either side forgets it.
	s.closeGateway()
	s.kill()
	s.up("alice")
	s.openGateway()
	s.linked()
	if next := s.got(one); len(next.Deliveries) != 1 || next.Deliveries[0].Sequence != 6 || len(next.Replayed) > 0 {
		t.Errorf("after both began anew: %+v", next)
	}
	if strings.Contains(s.records(), `"target":"gap"`) {
		t.Errorf("a gap that was filled is told: %s", s.records())
	}
}

// A gap may lie between two deliveries of one answer, before which nothing is missing.
func TestAGapInsideAnAnswerIsReplayed(t *testing.T) {
	s := newStage(t)
	trio := adapter.Draft{Channel: "trio"}
	s.posted("bob", trio, `"first"`)
	bodies := make([]string, adapter.QueueSize+1)
	for i := range bodies {
		bodies[i] = fmt.Sprint(i + 2)
	}
	s.posted("carol", trio, bodies...) // of whose messages 2 and 3 find no place, as bob has one only
	s.up("alice")
	s.linked()
	const ten = `{"max":10,"channel":"trio","lease":3600000000000}`
	got := s.got(ten)
	if len(got.Deliveries) != 10 || got.Deliveries[0].Sequence != 1 || got.Deliveries[1].Sequence != 4 || got.Deliveries[9].Sequence != 12 || !slices.Equal(sequences(got.Replayed), []uint64{2, 3}) {
		t.Fatalf("%+v", got)
	}
	// As long as what precedes the gap alone is acknowledged, it comes again.
	s.settles("ack", fmt.Sprintf(`{"leases":[%q]}`, got.Deliveries[0].Lease))
	s.settles("refuse", fmt.Sprintf(`{"refusals":[{"lease":%q,"delay":1}]}`, got.Deliveries[1].Lease))
	again := s.got(`{"max":10,"channel":"trio","wait":10000000000}`)
	if len(again.Deliveries) != 10 || again.Deliveries[0].Sequence != 4 || !slices.Equal(sequences(again.Replayed), []uint64{2, 3}) {
		t.Fatalf("%+v", again)
	}
	for _, d := range again.Deliveries {
		s.settles("ack", fmt.Sprintf(`{"leases":[%q]}`, d.Lease))
	}
	if next := s.got(ten); len(next.Deliveries) != 10 || next.Deliveries[0].Sequence != 14 || len(next.Replayed) > 0 {
		t.Errorf("%+v", next)
	}
}

// A file that is lost, or of something else, costs a second handing over, no message.
func TestWhoForgotWhatItHasSeenGetsItAgain(t *testing.T) {
	s := newStage(t)
	s.flooded(2)
	first := s.got(`{"max":1}`)
	s.settles("ack", fmt.Sprintf(`{"leases":[%q]}`, first.Deliveries[0].Lease))
	s.closeGateway()
	if err := os.WriteFile(filepath.Join(s.dir, "seen.json"), []byte(`{"version":1,"channels":[`), 0o600); err != nil {
		t.Fatal(err)
	}
	s.openGateway()
	s.linked()
	if again := s.got(`{"max":1}`); len(again.Replayed) != 2 || again.Deliveries[0].Sequence != 4 {
		t.Errorf("%+v", again)
	}
	if !strings.Contains(s.records(), "it is begun anew") {
		t.Error(s.records())
	}
}

func TestAStoreThatWasPutBackIsTold(t *testing.T) {
	s := newStage(t)
	s.from("bob", "1", "2")
	copyTo := func(from, to string) {
		t.Helper()
		for _, name := range []string{"messages.db", "messages.db-wal"} {
			raw, err := os.ReadFile(filepath.Join(s.dir, from, name))
			if err == nil {
				err = os.MkdirAll(filepath.Join(s.dir, to), 0o700)
			}
			if err == nil {
				err = os.WriteFile(filepath.Join(s.dir, to, name), raw, 0o600)
			}
			if err != nil {
				t.Fatal(err)
			}
		}
		_ = os.Remove(filepath.Join(s.dir, to, "messages.db-shm"))
	}
	copyTo(".", "old")
	s.from("bob", "3", "4", "5")
	s.up("alice")
	s.linked()
	all := s.got(`{"max":10}`)
	if len(all.Deliveries) != 5 {
		t.Fatalf("%+v", all)
	}
	for _, d := range all.Deliveries {
		s.settles("ack", fmt.Sprintf(`{"leases":[%q]}`, d.Lease))
	}
	s.kill()
	s.away()
	copyTo("old", ".")
	s.up("alice")
	s.linked()
	for !strings.Contains(s.records(), `"target":"gap"`) {
		time.Sleep(time.Millisecond)
		if t.Context().Err() != nil {
			t.Fatal("nobody is told")
		}
	}
	if out := s.records(); !strings.Contains(out, "acknowledged message 5") || !strings.Contains(out, "it ends at 2") {
		t.Error(out)
	}
	// It goes on from there: what comes under the old numbers is taken for new.
	for _, d := range s.got(`{"max":10}`).Deliveries {
		s.settles("ack", fmt.Sprintf(`{"leases":[%q]}`, d.Lease))
	}
	s.kill()
	s.away()
	s.up("alice")
	s.linked()
	s.closeGateway() // it has compared
	if n := strings.Count(s.records(), `"target":"gap"`); n != 1 {
		t.Errorf("told %d times", n)
	}
}

// scripted is an adapter whose answers are written down here.
type scripted struct {
	adapter.Service
	deliveries []adapter.Delivery
	answers    []adapter.Missed
	asked      []adapter.MissedRequest
	err        error
	slow       bool // it says nothing
}

func (s *scripted) Receive(context.Context, string, adapter.ReceiveRequest) ([]adapter.Delivery, error) {
	return s.deliveries, nil
}

func (s *scripted) Ack(_ context.Context, _ string, leases []string) []error {
	return make([]error, len(leases))
}

func (s *scripted) Missed(ctx context.Context, _ string, q adapter.MissedRequest) (adapter.Missed, error) {
	s.asked = append(s.asked, q)
	if s.slow {
		<-ctx.Done()
		return adapter.Missed{}, ctx.Err()
	}
	if s.err != nil || len(s.answers) == 0 {
		return adapter.Missed{}, s.err
	}
	a := s.answers[0]
	if len(s.answers) > 1 {
		s.answers = s.answers[1:]
	}
	return a, nil
}

func delivered(channel string, sequence, lastMissed uint64) adapter.Delivery {
	return adapter.Delivery{
		Message: adapter.Message{Channel: channel, Sequence: sequence, Time: time.Unix(int64(sequence), 0).UTC()},
		Lease:   fmt.Sprint(channel, sequence), Expires: time.Now().Add(time.Hour), Missed: lastMissed,
	}
}

func leasesOf(all []adapter.Delivery) (out []string) {
	for _, d := range all {
		out = append(out, d.Lease)
	}
	return out
}

func some(from, n uint64, size int) (out []adapter.Message) {
	for i := range n {
		out = append(out, adapter.Message{Channel: "c", Sequence: from + i, Body: make([]byte, size)})
	}
	return out
}

func TestWhatIsAGapAndWhatIsNot(t *testing.T) {
	at := time.Unix(7, 0).UTC()
	for name, k := range map[string]struct {
		mark       mark
		deliveries []adapter.Delivery
		answers    []adapter.Missed
		err        error
		asked      int
		replayed   int
		told       []string // of what the operator hears
		after      uint64   // the mark, once all is acknowledged
	}{
		"the next number":                    {mark{Sequence: 7, Time: at}, []adapter.Delivery{delivered("c", 8, 0)}, nil, nil, 0, 0, nil, 8},
		"numbers that are none of its own":   {mark{Sequence: 7, Time: at}, []adapter.Delivery{delivered("c", 20, 0)}, nil, nil, 0, 0, nil, 20},
		"one that comes again":               {mark{Sequence: 7, Time: at}, []adapter.Delivery{delivered("c", 5, 0)}, nil, nil, 0, 0, nil, 7},
		"a gap of long ago":                  {mark{Sequence: 7, Time: at}, []adapter.Delivery{delivered("c", 8, 6)}, nil, nil, 0, 0, nil, 8},
		"a gap":                              {mark{Sequence: 7, Time: at}, []adapter.Delivery{delivered("c", 11, 10), delivered("c", 12, 10)}, []adapter.Missed{{Messages: some(8, 3, 1), Last: 12}}, nil, 1, 3, nil, 12},
		"a gap inside an answer":             {mark{}, []adapter.Delivery{delivered("c", 1, 2), delivered("c", 3, 2), delivered("d", 4, 0), delivered("c", 4, 2)}, []adapter.Missed{{Messages: some(2, 1, 1), Last: 12}}, nil, 1, 1, nil, 4},
		"gaps in two channels":               {mark{Sequence: 7, Time: at}, []adapter.Delivery{delivered("c", 9, 8), delivered("d", 9, 8)}, []adapter.Missed{{Messages: some(8, 1, 1), Last: 12}}, nil, 2, 2, nil, 9},
		"a gap in pages":                     {mark{Sequence: 7, Time: at}, []adapter.Delivery{delivered("c", 11, 10)}, []adapter.Missed{{Messages: some(8, 1, 1), Next: 9}, {Next: 10}, {Messages: some(10, 1, 1)}}, nil, 3, 2, nil, 11},
		"a gap that an operator has dropped": {mark{Sequence: 7, Time: at}, []adapter.Delivery{delivered("c", 11, 10)}, []adapter.Missed{{Last: 12}}, nil, 1, 0, nil, 11},
		"the adapter does not answer":        {mark{Sequence: 7, Time: at}, []adapter.Delivery{delivered("c", 11, 10), delivered("c", 12, 10)}, nil, errors.New("gone"), 1, 0, nil, 7},
		"lost, of a gap that was told":       {mark{Sequence: 7, Time: at, Told: 10}, []adapter.Delivery{delivered("c", 11, 10)}, []adapter.Missed{{Messages: some(10, 1, 1), Lost: []adapter.Range{{From: 8, To: 9}}}}, nil, 1, 1, []string{"messages 8 to 9 are not"}, 11},
		"it may not read the channel":        {mark{Sequence: 7, Time: at}, []adapter.Delivery{delivered("c", 11, 10)}, nil, &deny.Reason{Layer: deny.LayerMessages, Code: deny.MessageNotAllowed}, 1, 0, []string{"may not read that channel any more"}, 11},
		"messages are lost":                  {mark{Sequence: 7, Time: at}, []adapter.Delivery{delivered("c", 11, 10)}, []adapter.Missed{{Messages: some(10, 1, 1), Lost: []adapter.Range{{From: 8, To: 9}}}}, nil, 1, 1, []string{"messages 8 to 9 are not in the adapter's store"}, 11},
		"those of which it was told already": {mark{Sequence: 7, Time: at, Lost: 9}, []adapter.Delivery{delivered("c", 11, 10)}, []adapter.Missed{{Messages: some(10, 1, 1), Lost: []adapter.Range{{From: 8, To: 9}}}}, nil, 1, 1, nil, 11},
		"the store is an earlier one":        {mark{Sequence: 7, Time: at}, []adapter.Delivery{delivered("c", 3, 8)}, []adapter.Missed{{Anew: true, Last: 3}, {Last: 3}}, nil, 1, 0, []string{"acknowledged message 7"}, 3},
		"more than an answer holds":          {mark{}, []adapter.Delivery{delivered("c", 1500, 1400)}, []adapter.Missed{{Messages: some(1, 1000, 1), Next: 1001}, {Messages: some(1001, 2, 1)}}, nil, 2, 1000, []string{"from 1001 to before 1500"}, 1500},
		"more bytes than an answer holds":    {mark{}, []adapter.Delivery{delivered("c", 30, 20)}, []adapter.Missed{{Messages: some(1, 5, 1<<20), Next: 6}, {Messages: some(6, 5, 1<<20)}}, nil, 2, 8, []string{"from 9 to before 30"}, 30},
		"a gap without end":                  {mark{}, []adapter.Delivery{delivered("c", 1<<40, 1)}, []adapter.Missed{{Next: 5}}, nil, maxPages, 0, []string{"from message 5 to before 1099511627776 took too long"}, 1 << 40},
	} {
		t.Run(name, func(t *testing.T) {
			s, err := openSeen(t.TempDir())
			if err != nil {
				t.Fatal(err)
			}
			s.marks["c"] = k.mark
			var out strings.Builder
			m := &Messages{cfg: Config{Agent: "a", Log: record.NewLog("t", &out)}, seen: s}
			from := &scripted{deliveries: k.deliveries, answers: k.answers, err: k.err}
			var leases []string
			for range 2 { // the second time nobody is told anew
				all, replayed, err := m.receive(t.Context(), from, adapter.ReceiveRequest{})
				if err != nil || len(all) != len(k.deliveries) {
					t.Fatalf("%+v, %v", all, err)
				}
				if leases == nil {
					if len(replayed) != k.replayed || len(from.asked) != k.asked {
						t.Errorf("%d replayed, asked %d times: %+v", len(replayed), len(from.asked), from.asked)
					}
					before := uint64(0)
					for _, d := range k.deliveries {
						if d.Channel == "c" {
							before = d.Sequence
						}
					}
					if k.asked > 0 && (from.asked[0].After != k.mark.Sequence || !from.asked[0].Time.Equal(k.mark.Time) || from.asked[0].Before != before) {
						t.Errorf("%+v", from.asked[0])
					}
				}
				leases = append(leases, leasesOf(all)...)
			}
			m.ack(t.Context(), from, leases)
			if got := s.of("c").Sequence; got != k.after {
				t.Errorf("the mark is %d, want %d", got, k.after)
			}
			if n := strings.Count(out.String(), `"target":"gap"`); n != len(k.told) {
				t.Errorf("told %d times: %s", n, out.String())
			}
			for _, what := range k.told {
				if !strings.Contains(out.String(), what) {
					t.Errorf("no %q in %s", what, out.String())
				}
			}
		})
	}
}

// An adapter that is too slow costs one answer its time, not every one.
func TestWhatCannotBeReadInTimeStaysAGap(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s, err := openSeen(t.TempDir())
		if err != nil {
			t.Fatal(err)
		}
		var out strings.Builder
		m := &Messages{cfg: Config{Agent: "a", Log: record.NewLog("t", &out)}, seen: s}
		from := &scripted{slow: true, deliveries: []adapter.Delivery{delivered("c", 5, 4), delivered("d", 7, 6), delivered("c", 6, 4)}}
		all, replayed, err := m.receive(t.Context(), from, adapter.ReceiveRequest{})
		if err != nil || len(all) != 3 || len(replayed) > 0 || len(from.asked) != 1 {
			t.Fatalf("%+v, %v, %v; asked %+v", all, replayed, err, from.asked)
		}
		m.ack(t.Context(), from, leasesOf(all))
		// What could not even be asked for is shown by the next delivery.
		if c, d := s.of("c").Sequence, s.of("d").Sequence; c != 6 || d != 0 {
			t.Errorf("the marks are %d and %d", c, d)
		}
		if n := strings.Count(out.String(), `"target":"gap"`); n != 1 || !strings.Contains(out.String(), "from message 1 to before 6 took too long") {
			t.Errorf("told %d times: %s", n, out.String())
		}
		// Who went away was handed nothing, and nobody is told.
		ctx, cancel := context.WithCancel(t.Context())
		time.AfterFunc(time.Second, cancel)
		from.deliveries = []adapter.Delivery{delivered("d", 8, 6)}
		all, _, err = m.receive(ctx, from, adapter.ReceiveRequest{})
		if err != nil {
			t.Fatal(err)
		}
		m.ack(t.Context(), from, leasesOf(all))
		if d := s.of("d").Sequence; d != 0 || strings.Count(out.String(), "\n") != 1 {
			t.Errorf("the mark is %d: %s", d, out.String())
		}
	})
}

func TestComparingGoesOnWhereItStopped(t *testing.T) {
	s, err := openSeen(t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	at := time.Unix(7, 0).UTC()
	s.marks["c"], s.marks["new"] = mark{Sequence: 7, Time: at}, mark{}
	var out strings.Builder
	m := &Messages{cfg: Config{Agent: "a", Log: record.NewLog("t", &out)}, seen: s}
	var left comparison
	left.begin(s.all())
	from := &scripted{answers: []adapter.Missed{{Next: 100}, {Lost: []adapter.Range{{From: 120, To: 130}}, Next: 200}, {}}}
	for range 3 {
		for before := len(from.asked); len(left) > 0 && len(from.asked) == before; {
			if !m.compare(t.Context(), from, &left) {
				t.Fatal("it did not answer")
			}
		}
	}
	want := adapter.MissedRequest{Channel: "c", After: 7, Time: at, Lost: true}
	second, third := want, want
	second.From, third.From = 100, 200
	if diff := cmp.Diff([]adapter.MissedRequest{want, second, third}, from.asked); diff != "" || len(left) > 0 {
		t.Errorf("%+v\n%s", left, diff)
	}
	if n := strings.Count(out.String(), `"target":"gap"`); n != 1 || !strings.Contains(out.String(), "messages 120 to 130 are not") {
		t.Errorf("told %d times: %s", n, out.String())
	}
	// What fails is asked again, after the others, and on another connection from the
	// mark of then, beside that of now.
	left.begin(s.all())
	left = append(left, look{channel: "d", at: mark{Sequence: 1}})
	from = &scripted{err: errors.New("gone")}
	if m.compare(t.Context(), from, &left) || len(left) != 2 || left[0].channel != "d" || left[1].channel != "c" {
		t.Errorf("%+v", left)
	}
	left[1].from = 50
	s.marks["c"] = mark{Sequence: 9, Time: at}
	for range 2 {
		left.begin(s.all())
	}
	if diff := cmp.Diff(comparison{{channel: "d", at: mark{Sequence: 1}}, {channel: "c", at: mark{Sequence: 7, Time: at, Lost: 130}}, {channel: "c", at: mark{Sequence: 9, Time: at}}},
		left, cmp.AllowUnexported(look{})); diff != "" {
		t.Error(diff)
	}
	// Whoever is no member any more has nothing to be compared.
	from = &scripted{err: &deny.Reason{Layer: deny.LayerMessages, Code: deny.MessageNotAllowed}}
	for range 3 {
		m.compare(t.Context(), from, &left)
	}
	if len(left) > 0 || strings.Count(out.String(), "\n") != 1 {
		t.Errorf("%+v: %s", left, out.String())
	}
}

func TestWhatWasSeenIsKept(t *testing.T) {
	dir := t.TempDir()
	s, err := openSeen(dir)
	if err != nil {
		t.Fatal(err)
	}
	d := delivered("c", 9, 0)
	s.took([]adapter.Delivery{d, delivered("c", 10, 0)})
	s.acknowledged("no lease")
	s.acknowledged(delivered("c", 10, 0).Lease)
	s.acknowledged(d.Lease) // later, and before it: that is no step back
	s.acknowledged(d.Lease)
	if err := s.save(); err != nil {
		t.Fatal(err)
	}
	again, err := openSeen(dir)
	if err != nil || !maps.Equal(again.all(), map[string]mark{"c": {Sequence: 10, Time: time.Unix(10, 0).UTC()}}) {
		t.Errorf("%+v, %v", again.all(), err)
	}
	if len(s.leases) > 0 {
		t.Errorf("%+v", s.leases)
	}
	// Leases and channels are bounded, whatever comes.
	for i := range maxTaken + 10 {
		s.took([]adapter.Delivery{delivered(fmt.Sprint(i), 1, 0)})
	}
	if len(s.leases) > maxTaken {
		t.Errorf("%d leases", len(s.leases))
	}
	for i := range maxTaken {
		s.acknowledged(delivered(fmt.Sprint(i), 1, 0).Lease)
	}
	if len(s.all()) > maxMarks {
		t.Errorf("%d channels", len(s.all()))
	}
	if err := s.save(); err != nil {
		t.Fatal(err)
	}
	if _, err := openSeen(dir); err != nil {
		t.Error(err)
	}
}

// FuzzMarks reads any file: it is understood as a whole or not at all.
func FuzzMarks(f *testing.F) {
	f.Add([]byte(`{"version":1,"channels":{"@a+b":{"sequence":3,"time":"2026-01-02T03:04:05Z","told":1}}}`))
	f.Add([]byte(`{"version":2}`))
	f.Add([]byte(`{"version":1,"channels":null}`))
	f.Add([]byte(``))
	f.Fuzz(func(t *testing.T, raw []byte) {
		m, err := parseMarks(raw)
		if (err == nil) != (m != nil) {
			t.Fatalf("%v, %v", m, err)
		}
		if err != nil {
			return
		}
		dir := t.TempDir()
		s := &seen{path: filepath.Join(dir, "seen.json"), marks: m, dirty: true}
		if err := s.save(); err != nil {
			return // a year that JSON has not
		}
		again, err := openSeen(dir)
		if err != nil || len(again.marks) != len(m) {
			t.Errorf("%v became %v, %v", m, again.marks, err)
		}
	})
}
