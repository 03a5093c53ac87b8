package server_test

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"testing"

	"bulkhead/internal/deny"
	"bulkhead/internal/hub"
	"bulkhead/internal/topic"
	"bulkhead/internal/topic/client"
	"bulkhead/internal/topic/protocol"
	"bulkhead/internal/topic/shelf"
	"bulkhead/internal/topic/topictest"
	"bulkhead/internal/wire"
)

// asServer says that this process is to serve from a folder until it is killed.
const asServer = "BULKHEAD_TOPICS_SERVER"

func TestMain(m *testing.M) {
	if dir := os.Getenv(asServer); dir != "" {
		if _, _, err := topictest.Serve(context.Background(), dir, dir, "pair", policy, "ci", "lead"); err != nil {
			fmt.Fprintln(os.Stderr, err)
			os.Exit(1)
		}
		fmt.Println("ready")
		select {}
	}
	os.Exit(m.Run())
}

var policy = topic.Policy{
	"builds": {Publish: []string{"ci"}, Read: []string{"lead"}, Storage: topic.DefaultStorage},
	"chat":   {Publish: []string{"ci", "lead"}, Read: []string{"ci", "lead"}, Storage: topic.DefaultStorage},
}

func code(err error) deny.Code {
	var r *deny.Reason
	if !errors.As(err, &r) {
		return ""
	}
	return r.Code
}

func put(t testing.TB, c *client.Client, name, message string) int64 {
	t.Helper()
	out, err := c.Publish(t.Context(), protocol.Publish{Topic: name, Key: message, Message: json.RawMessage(message)})
	if err != nil {
		t.Fatal(err)
	}
	return out.Seq
}

func TestOnlyWhatTheManifestNamesIsDone(t *testing.T) {
	_, c := topictest.Team(t, policy, "ci", "lead", "mute")
	put(t, c["ci"], "builds", `1`)
	zero := int64(0)
	for _, tc := range []struct {
		agent, name, rule string
		do                func(*client.Client, string) error
	}{
		{"lead", "builds", "topics.builds.publish", publish},
		{"mute", "builds", "topics.builds.publish", publish},
		{"mute", "none", "topics.none.publish", publish},
		{"ci", "builds", "topics.builds.read", func(c *client.Client, name string) error {
			_, err := c.Read(context.Background(), protocol.Read{Topic: name, After: &zero, Limit: 1})
			return err
		}},
		{"ci", "builds", "topics.builds.read", func(c *client.Client, name string) error {
			_, err := c.Read(context.Background(), protocol.Read{Topic: name, Subscription: "s", Limit: 1})
			return err
		}},
		{"ci", "builds", "topics.builds.read", func(c *client.Client, name string) error {
			_, err := c.Subscribe(context.Background(), protocol.Subscribe{Topic: name, Subscription: "s"})
			return err
		}},
		{"mute", "chat", "topics.chat.read", func(c *client.Client, name string) error {
			_, err := c.Unsubscribe(context.Background(), protocol.Subscription{Topic: name, Subscription: "s"})
			return err
		}},
	} {
		err := tc.do(c[tc.agent], tc.name)
		if code(err) != deny.ToolNotAllowed || !strings.Contains(err.Error(), tc.rule+" of the manifest does not name "+tc.agent) {
			t.Errorf("%s at %s: %v", tc.agent, tc.name, err)
		}
	}
	for _, name := range []string{"", "../chat", "Chat", "public/chat", "chat\x00", strings.Repeat("x", 32)} {
		if err := publish(c["ci"], name); code(err) != deny.ToolInvalid {
			t.Errorf("%q: %v", name, err)
		}
	}
	l, err := c["mute"].List(t.Context())
	if err != nil || len(l.Topics) != 0 {
		t.Errorf("who has to do with none sees %+v, %v", l, err)
	}
	if l, err = c["ci"].List(t.Context()); err != nil || len(l.Topics) != 2 || l.Topics[0].Last != 0 || l.Topics[0].Read || !l.Topics[0].Publish {
		t.Errorf("who may only publish sees %+v, %v", l, err)
	}
}

func publish(c *client.Client, name string) error {
	_, err := c.Publish(context.Background(), protocol.Publish{Topic: name, Key: "x", Message: json.RawMessage(`1`)})
	return err
}

func TestAChangeOfThePolicyHoldsAtOnce(t *testing.T) {
	s, c := topictest.Team(t, policy, "ci", "lead")
	put(t, c["ci"], "chat", `1`)
	less := topic.Policy{"chat": {Publish: []string{"lead"}, Read: []string{"lead"}, Storage: 1 << 20}}
	if err := s.SetPolicies(t.Context(), protocol.Policies{Teams: map[string]topic.Policy{"pair": less}}); err != nil {
		t.Fatal(err)
	}
	if err := publish(c["ci"], "chat"); code(err) != deny.ToolNotAllowed {
		t.Errorf("taken away: %v", err)
	}
	if n := put(t, c["lead"], "chat", `2`); n != 2 {
		t.Errorf("what was kept is gone: the next is %d", n)
	}
	if err := s.SetPolicies(t.Context(), protocol.Policies{}); err != nil {
		t.Fatal(err)
	}
	if err := publish(c["lead"], "chat"); code(err) != deny.ToolUnavailable {
		t.Errorf("a team without topics: %v", err)
	}
	if err := s.SetPolicies(t.Context(), protocol.Policies{Teams: map[string]topic.Policy{"pair": {"a/b": {Storage: 1}}}}); err == nil {
		t.Error("a policy with a bad name was taken")
	}
}

// Who may not read a topic any more neither sees its subscriptions to it nor can end
// them, so they do not keep it from others.
func TestSubscriptionsToWhatMayNotBeReadAreNotInTheWay(t *testing.T) {
	s, c := topictest.Team(t, policy, "ci", "lead")
	subscribe := func(name, sub string) error {
		_, err := c["lead"].Subscribe(t.Context(), protocol.Subscribe{Topic: name, Subscription: sub})
		return err
	}
	if err := subscribe("chat", "kept"); err != nil {
		t.Fatal(err)
	}
	var work sync.WaitGroup
	for i := range 8 {
		work.Go(func() {
			for n := i; n < topic.MaxSubscriptions-1; n += 8 {
				if err := subscribe("builds", fmt.Sprint(n)); err != nil {
					t.Error(err)
					return
				}
			}
		})
	}
	work.Wait()
	if err := subscribe("chat", "more"); code(err) != deny.ToolQuota {
		t.Fatal(err)
	}
	less := topic.Policy{"chat": policy["chat"]}
	if err := s.SetPolicies(t.Context(), protocol.Policies{Teams: map[string]topic.Policy{"pair": less}}); err != nil {
		t.Fatal(err)
	}
	if err := subscribe("chat", "more"); err != nil {
		t.Errorf("those to builds, which it can neither see nor end, are in the way: %v", err)
	}
	l, err := c["lead"].List(t.Context())
	if err != nil || len(l.Topics) != 1 || len(l.Topics[0].Subscriptions) != 2 {
		t.Errorf("%+v, %v", l, err)
	}
}

func TestANewConnectionEndsTheOneBefore(t *testing.T) {
	dir := topictest.Sockets(t)
	_, end, err := topictest.Serve(context.Background(), t.TempDir(), dir, "pair", policy, "ci")
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = end() }()
	dial := func() *wire.Conn {
		u, err := net.DialUnix("unix", nil, &net.UnixAddr{Name: topictest.Socket(dir, "ci"), Net: "unix"})
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { _ = u.Close() })
		c := wire.New(u)
		if err := hub.Dial(c, protocol.Name, protocol.Version, "any"); err != nil {
			t.Fatal(err)
		}
		return c
	}
	list := func(c *wire.Conn) error {
		if err := c.Send(2, protocol.VerbList, struct{}{}); err != nil {
			return err
		}
		_, _, err := c.Recv()
		return err
	}
	first := dial()
	if err := list(first); err != nil {
		t.Fatal(err)
	}
	second := dial()
	if err := list(second); err != nil {
		t.Fatal(err)
	}
	if _, _, err := first.Recv(); err == nil {
		t.Error("the first connection goes on")
	}
}

func TestWhoWaitsHearsOfWhatIsPublished(t *testing.T) {
	_, c := topictest.Team(t, policy, "ci", "lead")
	if _, err := c["lead"].Subscribe(t.Context(), protocol.Subscribe{Topic: "builds", Subscription: "s"}); err != nil {
		t.Fatal(err)
	}
	for i := range 20 {
		for {
			fresh := c["lead"].News("builds")
			m, err := c["lead"].Read(t.Context(), protocol.Read{Topic: "builds", Subscription: "s", Limit: 10})
			if err != nil {
				t.Fatal(err)
			}
			if len(m.Messages) == 1 && string(m.Messages[0].Body) == fmt.Sprint(i-1) {
				break
			}
			if i == 0 {
				break
			}
			<-fresh
		}
		put(t, c["ci"], "builds", fmt.Sprint(i))
	}
}

// One agent that has as much open as it may, and large, keeps nobody
// else from publishing and reading.
func TestAFloodHoldsUpNobodyElse(t *testing.T) {
	_, c := topictest.Team(t, policy, "ci", "lead")
	ctx, cancel := context.WithCancel(t.Context())
	var work sync.WaitGroup
	defer work.Wait()
	defer cancel()
	big := json.RawMessage(`"` + strings.Repeat("x", 100<<10) + `"`)
	begun := make(chan struct{})
	for i := range 200 {
		work.Go(func() {
			for n := 0; ctx.Err() == nil; n++ {
				_, _ = c["ci"].Publish(ctx, protocol.Publish{Topic: "chat", Key: fmt.Sprint(i, ".", n), Message: big})
				if i == 0 && n == 0 {
					close(begun)
				}
			}
		})
	}
	<-begun
	for i := range 20 {
		put(t, c["lead"], "chat", fmt.Sprint(i))
	}
	after := int64(0)
	seen := 0
	for {
		m, err := c["lead"].Read(t.Context(), protocol.Read{Topic: "chat", After: &after, Limit: topic.MaxPolled})
		if err != nil {
			t.Fatal(err)
		}
		for _, one := range m.Messages {
			after = one.Seq
			if one.From == "lead" {
				seen++
			}
		}
		if seen == 20 {
			return
		}
		if len(m.Messages) == 0 {
			t.Fatalf("%d of 20 are left", seen)
		}
	}
}

// What was answered is there once after any number of kills, and nothing else
// but what was asked for.
func TestWhatWasPublishedSurvivesAKill(t *testing.T) {
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	dir := topictest.Sockets(t)
	serve := func() *exec.Cmd {
		x := exec.CommandContext(t.Context(), self) // #nosec G204 -- this test
		x.Env = append(os.Environ(), asServer+"="+dir)
		x.Stderr = os.Stderr
		out, err := x.StdoutPipe()
		if err == nil {
			err = x.Start()
		}
		if err == nil {
			_, err = out.Read(make([]byte, 8))
		}
		if err != nil {
			t.Fatal(err)
		}
		return x
	}
	c := client.New(client.Config{Socket: topictest.Socket(dir, "ci")})
	defer func() { _ = c.Close() }()
	x := serve()
	var mu sync.Mutex
	answered := map[string]int64{}
	var work sync.WaitGroup
	ctx, cancel := context.WithCancel(t.Context())
	told := make(chan struct{}, 1000)
	for w := range 8 {
		work.Go(func() {
			for n := 0; ctx.Err() == nil; n++ {
				message := fmt.Sprintf(`"%d.%d"`, w, n)
				out, err := c.Publish(ctx, protocol.Publish{Topic: "builds", Key: message, Message: json.RawMessage(message)})
				if err != nil {
					continue // not answered: it may be there or not
				}
				mu.Lock()
				answered[message] = out.Seq
				mu.Unlock()
				select {
				case told <- struct{}{}:
				default:
				}
			}
		})
	}
	for round := range 4 {
		for range 10 + 7*round { // then it is in the middle of the next
			<-told
		}
		if err := x.Process.Kill(); err != nil {
			t.Fatal(err)
		}
		_ = x.Wait()
		x = serve()
	}
	for range 20 {
		<-told
	}
	cancel()
	work.Wait()
	_ = x.Process.Kill()
	_ = x.Wait()
	s, err := shelf.Open(t.Context(), dir, "pair", nil, nil)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = s.Close() }()
	after := int64(0)
	found := map[string]int64{}
	for {
		m, err := s.Read(t.Context(), "lead", protocol.Read{Topic: "builds", After: &after, Limit: topic.MaxPolled})
		if err != nil {
			t.Fatal(err)
		}
		for _, one := range m.Messages {
			after = one.Seq
			if before, twice := found[string(one.Body)]; twice {
				t.Errorf("%s is there as %d and %d", one.Body, before, one.Seq)
			}
			found[string(one.Body)] = one.Seq
		}
		if len(m.Messages) == 0 {
			break
		}
	}
	if len(answered) > topic.Keep {
		t.Fatalf("%d messages are more than are kept: publish fewer", len(answered))
	}
	for message, seq := range answered {
		if found[message] != seq {
			t.Errorf("%s was answered with %d, and is there as %d", message, seq, found[message])
		}
	}
	if _, err := os.Lstat(filepath.Join(dir, "pair.db")); err != nil {
		t.Error(err)
	}
}
