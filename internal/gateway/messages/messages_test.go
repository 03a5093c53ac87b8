package messages

import (
	"bufio"
	"context"
	"encoding/json"
	"fmt"
	"net/http"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"bulkhead/internal/adapter"
	"bulkhead/internal/adapter/client"
	"bulkhead/internal/adapter/draftkey"
	"bulkhead/internal/deny"
	"bulkhead/internal/gateway/outbox"
)

func TestAnswersOfSend(t *testing.T) {
	s := newStage(t)
	s.up("alice")
	s.linked()
	d := draftTo("bob", `{"a":1}`)
	for _, c := range []struct {
		name, body string
		status     int
		has        []string
	}{
		{"a message", d, 201, []string{`"channel":"@alice+bob"`, `"channel_sequence_id":1`, `"timestamp"`}},
		{"the same again", d, 200, []string{`"duplicate":true`, `"channel_sequence_id":1`}},
		{"the key with another body", strings.Replace(d, `{"a":1}`, `2`, 1), 409, []string{"messages/messages.duplicate_key"}},
		{"to one who may not be written to", draftTo("carol", `1`), 403, []string{"messages/messages.not_allowed", "possibleFix"}},
		{
			"everything wrong at once", `{"idempotency_key":"x","to":"a","channel":"b","type":"Note","priority":"urgent","from":"bob","reply_to_sequence_id":-1}`, 400,
			[]string{`"idempotency_key"`, `"channel"`, `"type"`, `"priority"`, `"from"`, `"reply_to_sequence_id"`, `"body"`, "VALIDATION_ERROR"},
		},
		{"wrong types", `{"idempotency_key":7,"to":[],"type":"note","body":1}`, 400, []string{`"name":"idempotency_key"`, `"name":"to"`}},
		{"no object", `[1]`, 400, []string{"not a JSON object"}},
		{"no JSON", `{`, 400, []string{"(body)"}},
		{"two values", d + `1`, 400, []string{"something follows"}},
		{"too large", draftTo("bob", `"`+strings.Repeat("x", adapter.MaxBody)+`"`), 413, []string{"messages/messages.too_large"}},
		{"much too large", draftTo("bob", `"`+strings.Repeat("x", 2*adapter.MaxBody)+`"`), 413, []string{"messages/messages.too_large"}},
		{"a critical type without leave", strings.Replace(draftTo("bob", `1`), `"note"`, `"policy_update"`, 1), 403, []string{"not_allowed"}},
	} {
		t.Run(c.name, func(t *testing.T) {
			status, h, text := s.do("POST", "/v1/messages", c.body)
			if status != c.status || h.Get("Content-Type") != "application/json" {
				t.Errorf("%d %s: %s", status, h.Get("Content-Type"), text)
			}
			for _, want := range c.has {
				if !strings.Contains(text, want) {
					t.Errorf("no %s in %s", want, text)
				}
			}
			if status >= 400 && h.Get(DeniedHeader) == "" {
				t.Error("no code in the header")
			}
		})
	}
	status, _, text := s.do("POST", "/v1/messages:batch", `{"messages":[`+draftTo("bob", `2`)+`,`+d+`,`+draftTo("carol", `1`)+`,{"type":1}]}`)
	var items Items
	if err := json.Unmarshal([]byte(text), &items); err != nil || status != 207 || len(items.Results) != 4 {
		t.Fatalf("%d %s", status, text)
	}
	for i, want := range []int{201, 200, 403, 400} {
		if items.Results[i].Status != want {
			t.Errorf("item %d: %+v", i, items.Results[i])
		}
	}
	for _, bad := range []string{`{"messages":[]}`, `{}`, `{"messages":7}`, `{"all":[]}`} {
		if status, _, text := s.do("POST", "/v1/messages:batch", bad); status != 400 || !strings.Contains(text, `"fields"`) {
			t.Errorf("%s: %d %s", bad, status, text)
		}
	}
}

func TestReceiveAndEverythingAfterIt(t *testing.T) {
	s := newStage(t)
	s.up("bob") // bob's socket, to put something into alice's queue
	b, err := client.Dial(t.Context(), filepath.Join(s.dir, "bob.sock"), token)
	if err != nil {
		t.Fatal(err)
	}
	for n := range 5 {
		d := adapter.Draft{IdempotencyKey: draftkey.New(), To: "alice", Type: "note", Body: json.RawMessage(fmt.Sprintf("{\"n\":\n%d}", n))}
		if r := b.Send(t.Context(), "", []adapter.Draft{d}); r[0].Err != nil {
			t.Fatal(r[0].Err)
		}
	}
	_ = b.Close()
	s.kill()
	s.up("alice")
	s.linked()
	receive := func(q string) []adapter.Delivery {
		t.Helper()
		status, _, text := s.do("POST", "/v1/messages:receive", q)
		var got struct{ Deliveries []adapter.Delivery }
		if err := json.Unmarshal([]byte(text), &got); err != nil || status != 200 {
			t.Fatalf("%d %s", status, text)
		}
		return got.Deliveries
	}
	got := receive(`{"max":2,"wait":5000000000}`)
	if len(got) == 0 || got[0].From != "bob" || got[0].Sequence != 1 {
		t.Fatalf("%+v", got)
	}
	lease := func(verb, q string) string {
		t.Helper()
		status, _, text := s.do("POST", "/v1/messages:"+verb, q)
		if status != 207 {
			t.Fatalf("%s: %d %s", verb, status, text)
		}
		return text
	}
	if text := lease("extend", fmt.Sprintf(`{"leases":[%q],"duration":60000000000}`, got[0].Lease)); !strings.Contains(text, `"status":200`) {
		t.Error(text)
	}
	if text := lease("ack", fmt.Sprintf(`{"leases":[%q,"none"]}`, got[0].Lease)); !strings.Contains(text, `{"status":200},{"status":409`) {
		t.Error(text)
	}
	rest := receive(`{"wait":5000000000}`)
	if len(got) > 1 {
		rest = append(got[1:], rest...)
	}
	if text := lease("refuse", fmt.Sprintf(`{"refusals":[{"lease":%q,"delay":1000000,"reason":"busy"}]}`, rest[0].Lease)); !strings.Contains(text, `"status":200`) {
		t.Error(text)
	}
	for path, want := range map[string]string{
		"/v1/channels": `"channel":"@alice+bob"`, "/v1/channels/@alice+bob/messages?from=2&limit=2": `"next":4`,
		"/v1/channels/@alice+bob/threads/3": `"channel_sequence_id":3`, "/v1/outbox": `{"waiting":[],"refused":[]}`,
	} {
		if status, _, text := s.do("GET", path, ""); status != 200 || !strings.Contains(text, want) {
			t.Errorf("%s: %d %s", path, status, text)
		}
	}
	for path, want := range map[string]int{
		"/v1/channels/secret/messages": 403, "/v1/channels/all/messages?from=x&limit=-1&more=1": 400, "/v1/channels/all/threads/x": 400,
		"/v1/messages:stream?max=0": 400, "/v1/messages:stream?max=101": 400,
		"/v1/messages:stream?channel=secret": 403, "/v1/messages:stream?channel=@alice%2Bcarol": 403,
	} {
		if status, _, text := s.do("GET", path, ""); status != want {
			t.Errorf("%s: %d %s", path, status, text)
		}
	}
	for _, body := range []string{`{"channel":"secret"}`, `{"channel":"secret","wait":60000000000}`, `{"channel":"@bob+carol"}`} {
		status, h, text := s.do("POST", "/v1/messages:receive", body)
		if status != 403 || h.Get(DeniedHeader) != string(deny.MessageNotAllowed) || !strings.Contains(text, "alice is no member of it") || !strings.Contains(text, "agents.alice.channels") {
			t.Errorf("%s: %d %s", body, status, text)
		}
	}
	for path, body := range map[string]string{
		"/v1/messages:ack": `{"leases":[]}`, "/v1/messages:refuse": `{"refusals":[{"lease":7}]}`, "/v1/messages:extend": `{"leases":["x"],"duration":"1m"}`,
		"/v1/messages:receive": `{"max":"many"}`,
	} {
		if status, _, text := s.do("POST", path, body); status != 400 {
			t.Errorf("%s %s: %d %s", path, body, status, text)
		}
	}
}

func TestAStreamHoldsBackWhatIsNotSettled(t *testing.T) {
	s := newStage(t)
	s.up("bob")
	b, err := client.Dial(t.Context(), filepath.Join(s.dir, "bob.sock"), token)
	if err != nil {
		t.Fatal(err)
	}
	for n := range 6 {
		d := adapter.Draft{IdempotencyKey: draftkey.New(), To: "alice", Type: "note", Body: json.RawMessage(fmt.Sprintf("{\"n\":\r\n%d}", n))}
		if r := b.Send(t.Context(), "", []adapter.Draft{d}); r[0].Err != nil {
			t.Fatal(r[0].Err)
		}
	}
	_ = b.Close()
	s.kill()
	s.up("alice")
	s.linked()
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	q, _ := http.NewRequestWithContext(ctx, "GET", s.web.URL+"/v1/messages:stream?max=2", nil)
	r, err := http.DefaultClient.Do(q)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = r.Body.Close() }()
	lines := make(chan adapter.Delivery, 10)
	go func() {
		defer close(lines)
		for in := bufio.NewScanner(r.Body); in.Scan(); {
			if data, ok := strings.CutPrefix(in.Text(), "data: "); ok {
				var d adapter.Delivery
				if err := json.Unmarshal([]byte(data), &d); err != nil {
					t.Errorf("%q: %v", data, err)
				}
				lines <- d
			}
		}
	}()
	one, two := <-lines, <-lines
	select {
	case d := <-lines:
		t.Fatalf("a third one came before any was settled: %d", d.Sequence)
	case <-time.After(300 * time.Millisecond):
	}
	for _, d := range []adapter.Delivery{one, two} {
		s.do("POST", "/v1/messages:ack", fmt.Sprintf(`{"leases":[%q]}`, d.Lease))
	}
	for want := uint64(3); want <= 6; want++ {
		d := <-lines
		if d.Sequence != want {
			t.Fatalf("%d came, not %d", d.Sequence, want)
		}
		s.do("POST", "/v1/messages:ack", fmt.Sprintf(`{"leases":[%q]}`, d.Lease))
	}
}

// The adapter is killed again and again while six senders send, half of them several
// at a time. None of them sees an error, and everything arrives once, each sender's in order.
func TestSendersDoNotNoticeThatTheAdapterIsKilled(t *testing.T) {
	s := newStage(t)
	const senders, rounds = 6, 4
	var work sync.WaitGroup
	ctx, stop := context.WithCancel(t.Context())
	count := make([]int, senders)
	statuses := map[int]int{}
	var mu sync.Mutex
	for w := range senders {
		work.Go(func() {
			size := 1 + w%2*2
			for n := 0; ctx.Err() == nil && n+size <= 80; n += size { // a queue holds 500
				var drafts []string
				for i := range size {
					drafts = append(drafts, draftTo("bob", fmt.Sprintf(`{"sender":%d,"n":%d}`, w, n+i)))
				}
				path, body := "/v1/messages", drafts[0]
				if size > 1 {
					path, body = path+":batch", `{"messages":[`+strings.Join(drafts, ",")+`]}`
				}
				status, _, text := s.do("POST", path, body)
				if status == 207 { // some may be in the outbox; what follows one of these is, too
					if status = 201; strings.Contains(text, `"status":202`) {
						status = 202
					}
					if strings.Count(text, `"status":20`) != size || strings.Contains(text[strings.LastIndex(text, `"status":202`)+1:], `"status":201`) && status == 202 {
						t.Errorf("%s", text)
						return
					}
				}
				if status != 201 && status != 202 && status != 200 {
					t.Errorf("%d %s", status, text)
					return
				}
				mu.Lock()
				statuses[status]++
				count[w] = n + size
				mu.Unlock()
				pause := 5 * time.Millisecond
				if status == 202 { // few while an adapter starts
					pause = 200 * time.Millisecond
				}
				time.Sleep(pause)
			}
		})
	}
	more := func(status, n int) { // waits for n answers
		mu.Lock()
		n += statuses[status]
		mu.Unlock()
		for end := time.Now().Add(20 * time.Second); time.Now().Before(end); time.Sleep(time.Millisecond) {
			mu.Lock()
			have := statuses[status]
			mu.Unlock()
			if have >= n {
				return
			}
		}
		t.Errorf("no %d more answers %d", n, status)
	}
	s.up("alice")
	for range rounds {
		s.linked()
		more(201, 12)
		s.kill()
		more(202, 1)
		s.up("alice")
	}
	stop()
	work.Wait()
	for s.m.box.Len() > 0 {
		_, changed := s.m.box.Waiting(1)
		select {
		case <-changed:
		case <-time.After(time.Second):
		}
	}
	s.kill()
	total := 0
	for _, n := range count {
		total += n
	}
	t.Logf("%d messages, by status %v", total, statuses)
	if statuses[202] == 0 || statuses[201] == 0 {
		t.Error("the adapter was not both there and away")
	}
	s.up("bob")
	b, err := client.Dial(t.Context(), filepath.Join(s.dir, "bob.sock"), token)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = b.Close() }()
	next := make([]int, senders)
	for got := 0; got < total; got++ {
		l, err := b.Receive(t.Context(), "", adapter.ReceiveRequest{Max: 1, Wait: 10 * time.Second})
		if err != nil || len(l) != 1 {
			t.Fatalf("after %d of %d: %+v, %v", got, total, l, err)
		}
		if l[0].Sequence != uint64(got+1) {
			t.Fatalf("sequence %d after %d", l[0].Sequence, got)
		}
		var body struct{ Sender, N int }
		if err := json.Unmarshal(l[0].Body, &body); err != nil || body.N != next[body.Sender] {
			t.Fatalf("sender %d: %d, wanted %d", body.Sender, body.N, next[body.Sender])
		}
		next[body.Sender]++
		if errs := b.Ack(t.Context(), "", []string{l[0].Lease}); errs[0] != nil {
			t.Fatal(errs[0])
		}
	}
	if !slices.Equal(next, count) {
		t.Errorf("%v arrived of %v", next, count)
	}
}

func TestTheOutboxOutlivesTheGatewayAndTellsOfRefusals(t *testing.T) {
	s := newStage(t)
	var keys []string
	for n, to := range []string{"bob", "carol", "bob"} {
		d := draftTo(to, strconv.Itoa(n))
		var key struct {
			IdempotencyKey string `json:"idempotency_key"`
		}
		_ = json.Unmarshal([]byte(d), &key)
		keys = append(keys, key.IdempotencyKey)
		for range 2 { // again is the same
			if status, _, text := s.do("POST", "/v1/messages", d); status != 202 || !strings.Contains(text, `"outbox":true`) {
				t.Fatalf("%d %s", status, text)
			}
		}
		if status, _, _ := s.do("POST", "/v1/messages", strings.Replace(d, `"body":`, `"body":1`, 1)); status != 409 {
			t.Fatalf("the key with another body: %d", status)
		}
	}
	if status, h, _ := s.do("POST", "/v1/messages:receive", `{}`); status != 503 || h.Get("Retry-After") == "" {
		t.Errorf("receive without an adapter: %d", status)
	}
	s.closeGateway()
	s.openGateway()
	if _, _, text := s.do("GET", "/v1/outbox", ""); strings.Count(text, `"since"`) != 3 {
		t.Fatal(text)
	}
	s.up("alice")
	s.linked()
	for s.m.box.Len() > 0 {
		_, changed := s.m.box.Waiting(1)
		select {
		case <-changed:
		case <-time.After(time.Second):
		}
	}
	_, _, text := s.do("GET", "/v1/outbox", "")
	var box Outbox
	if err := json.Unmarshal([]byte(text), &box); err != nil || len(box.Waiting) != 0 || len(box.Refused) != 1 || box.Refused[0].IdempotencyKey != keys[1] ||
		box.Refused[0].Error.StatusCode != 403 || string(box.Refused[0].Body) != "1" {
		t.Fatal(text)
	}
	if out := s.records(); !strings.Contains(out, `"kind":"message","verdict":"denied","target":"to carol"`) || !strings.Contains(out, keys[1]) {
		t.Errorf("the operator does not see it: %s", out)
	}
	// The sender, which went on after its 202, is told.
	var got struct{ Deliveries []adapter.Delivery }
	if _, _, text = s.do("POST", "/v1/messages:receive", `{"wait":5000000000}`); json.Unmarshal([]byte(text), &got) != nil || len(got.Deliveries) != 1 {
		t.Fatal(text)
	}
	d := got.Deliveries[0]
	if d.From != adapter.System || d.Type != adapter.DeliveryFailed || !strings.Contains(string(d.Body), keys[1]) || !strings.Contains(string(d.Body), `"recipient":"carol"`) {
		t.Error(text)
	}
	_, _, text = s.do("GET", "/v1/channels/@alice+bob/messages", "")
	if at, then := strings.Index(text, keys[0]), strings.Index(text, keys[2]); at < 0 || then < at {
		t.Error(text)
	}
}

func TestAFullOutboxIsAnEmergency(t *testing.T) {
	s := newStage(t)
	var work sync.WaitGroup
	for range 20 {
		work.Go(func() {
			for range outbox.MaxMessages / 20 {
				if status, _, text := s.do("POST", "/v1/messages", draftTo("bob", `1`)); status != 202 {
					t.Errorf("%d %s", status, text)
				}
			}
		})
	}
	work.Wait()
	status, h, text := s.do("POST", "/v1/messages", draftTo("bob", `1`))
	if status != 503 || h.Get("Retry-After") == "" || !strings.Contains(text, "outbox is full") {
		t.Fatalf("%d %v %s", status, h, text)
	}
	if out := s.records(); !strings.Contains(out, `"kind":"message","verdict":"failed","target":"outbox"`) {
		t.Errorf("no emergency record: %s", out)
	}
}

// A recipient whose queue is full of what may not be given up holds back what
// goes to it, and nothing else.
// A receiver that waits does not notice that the adapter starts anew meanwhile.
func TestAWaitLastsWhileTheAdapterIsAway(t *testing.T) {
	s := newStage(t)
	if status, h, _ := s.do("POST", "/v1/messages:receive", `{}`); status != 503 || h.Get("Retry-After") == "" {
		t.Errorf("who does not wait: %d", status)
	}
	put := func(body string) { // into alice's queue
		t.Helper()
		s.up("bob")
		b, err := client.Dial(t.Context(), filepath.Join(s.dir, "bob.sock"), token)
		if err != nil {
			t.Fatal(err)
		}
		if r := b.Send(t.Context(), "", []adapter.Draft{{IdempotencyKey: draftkey.New(), To: "alice", Type: "note", Body: []byte(body)}}); r[0].Err != nil {
			t.Fatal(r[0].Err)
		}
		_ = b.Close()
		s.kill()
	}
	got := make(chan string, 1)
	waits := func() {
		go func() {
			status, _, text := s.do("POST", "/v1/messages:receive", `{"wait":60000000000}`)
			got <- fmt.Sprint(status, " ", text)
		}()
	}
	put(`"first"`)
	waits()
	s.up("alice")
	first := <-got
	if !strings.HasPrefix(first, "200 ") || !strings.Contains(first, `"body":"first"`) {
		t.Fatalf("from before there was an adapter: %s", first)
	}
	lease := regexp.MustCompile(`"lease":"([^"]+)"`).FindStringSubmatch(first)[1]
	if status, _, text := s.do("POST", "/v1/messages:ack", fmt.Sprintf(`{"leases":[%q]}`, lease)); status != 207 || !strings.Contains(text, `"status":200`) {
		t.Fatalf("%d %s", status, text)
	}
	waits()
	time.Sleep(50 * time.Millisecond) // it waits at the adapter, as like as not
	s.kill()
	s.away()
	put(`"second"`)
	s.up("alice")
	if out := <-got; !strings.HasPrefix(out, "200 ") || !strings.Contains(out, `"body":"second"`) {
		t.Errorf("over a restart of the adapter: %s", out)
	}
}

func TestWhatIsRefusedForNowHoldsBackOnlyItsOwn(t *testing.T) {
	s := newStage(t)
	s.up("alice")
	s.linked()
	critical := func() string {
		return strings.Replace(draftTo("bob", `1`), `"note"`, `"escalation"`, 1)
	}
	for n := 0; n < adapter.QueueSize; n += 100 {
		var all []string
		for range 100 {
			all = append(all, critical())
		}
		if status, _, text := s.do("POST", "/v1/messages:batch", `{"messages":[`+strings.Join(all, ",")+`]}`); status != 207 || strings.Count(text, `"status":201`) != 100 {
			t.Fatalf("%d %.300s", status, text)
		}
	}
	if status, h, text := s.do("POST", "/v1/messages", critical()); status != 429 || h.Get("Retry-After") == "" {
		t.Fatalf("%d %s", status, text)
	}
	s.kill()
	s.away()
	held := critical()
	if status, _, text := s.do("POST", "/v1/messages", held); status != 202 {
		t.Fatalf("%d %s", status, text)
	}
	s.up("alice")
	s.linked()
	for n := 0; ; n++ { // until the adapter has refused it
		if _, _, text := s.do("GET", "/v1/outbox", ""); strings.Contains(text, "messages.queue_full") {
			break
		} else if n > 500 {
			t.Fatal(text)
		}
		time.Sleep(10 * time.Millisecond)
	}
	if status, _, text := s.do("POST", "/v1/messages", critical()); status != 429 {
		t.Errorf("to the one that is held back: %d %s", status, text)
	}
	if status, _, text := s.do("POST", "/v1/messages", draftTo("alice2", `1`)); status != 201 {
		t.Errorf("to another: %d %s", status, text)
	}
}

func FuzzRequests(f *testing.F) {
	s := newStage(f)
	s.up("alice")
	s.linked()
	f.Add("/v1/messages", draftTo("bob", `{"a":[1,null]}`))
	f.Add("/v1/messages:batch", `{"messages":[{"idempotency_key":"x"},7]}`)
	f.Add("/v1/messages:receive", `{"max":-1,"wait":-1,"lease":99999999999999,"channel":"x"}`)
	f.Add("/v1/messages:ack", `{"leases":["a","b"]}`)
	f.Add("/v1/messages:refuse", `{"refusals":[{"lease":"x","delay":-1,"reason":"\u0000"}]}`)
	f.Add("/v1/messages:extend", `{"leases":["x"],"duration":-1}`)
	f.Fuzz(func(t *testing.T, path, body string) {
		if !slices.Contains([]string{"", ":batch", ":receive", ":ack", ":refuse", ":extend"}, strings.TrimPrefix(path, "/v1/messages")) || strings.Contains(body, "wait") {
			return // another endpoint, or a wait
		}
		status, h, text := ask(t, "POST", s.web.URL+path, body)
		if status < 200 || status == 500 || status == 503 || status >= 400 && (h.Get(DeniedHeader) == "" || !strings.Contains(text, `"possibleFix"`)) {
			t.Errorf("%d %s", status, text)
		}
	})
}
