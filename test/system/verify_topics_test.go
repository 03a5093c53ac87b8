package system

import (
	"encoding/json"
	"errors"
	"net"
	"os"
	"runtime"
	"slices"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"bulkhead/internal/deny"
	"bulkhead/internal/evidence"
	"bulkhead/internal/hub"
	"bulkhead/internal/layout"
	"bulkhead/internal/prove"
	"bulkhead/internal/topic/protocol"
	"bulkhead/internal/wire"
	"bulkhead/test/system/stage"
	"bulkhead/test/system/throwaway"
)

// TestVerifyAndProveATeamWithPublicTopics attacks topics that are others', and
// shows with the gateways' own tokens, which no probe is given, that it is the
// manifest by which the server decides.
func TestVerifyAndProveATeamWithPublicTopics(t *testing.T) {
	bin := stage.Build(t)
	throwaway.Run(t, func(t *testing.T, _ *throwaway.Host) {
		c := host(t, bin)
		// Beside those who have tools one that has none.
		const tools = ", tools: {allow: [events]}}"
		text := strings.Replace(withTopics, tools, "}", 1)
		text = strings.ReplaceAll(text, "mode: session}", "mode: session"+tools)
		write(t, c.Dir, text+"  bare: {rootfs: /srv/rootfs, mode: session}\n")
		c.Run(t, "up")
		c.Run(t, "exec", "ci", "--", "bulkhead", "tool", "call", "events_publish", `{"topic":"public/builds","message":1}`)
		r, report := verify(t, c)
		if r.Exit != 0 || report.Succeeded != 0 || report.Unproven != 0 || report.Controls.Bit != report.Controls.Run {
			t.Errorf("verify ends with %d:\n%s", r.Exit, report.Text())
		}
		every := []string{"ci", "lead", "mute", "bare"}
		for _, want := range []struct {
			attack string
			from   evidence.Position
			agents []string
		}{
			{"topics.publish", evidence.FromRuntime, []string{"lead", "mute", "bare"}},
			{"topics.read", evidence.FromRuntime, []string{"ci", "mute", "bare"}},
			{"topics.token", evidence.FromGateway, every},
			{"topics.forge", evidence.FromGateway, every},
			{"topics.operator", evidence.FromGateway, every},
			{"topics.socket", evidence.FromRuntime, every},
			{"topics.socket", evidence.FromGateway, every},
			{"topics.socket", evidence.FromAccount, every},
			{"topics.kept", evidence.FromRuntime, every},
			{"topics.kept", evidence.FromGateway, every},
			{"topics.kept", evidence.FromAccount, every},
			{"topics.kept", evidence.FromServer, []string{layout.TopicsName}},
			{"vault.sockets", evidence.FromAccount, every},
		} {
			var denied []string
			for _, row := range report.Rows {
				if row.Attack != want.attack || row.Position != want.from {
					continue
				}
				if row.Verdict != evidence.Denied {
					t.Errorf("%+v", row)
				}
				if !slices.Contains(denied, row.Agent) {
					denied = append(denied, row.Agent)
				}
			}
			for _, agent := range want.agents {
				if !slices.Contains(denied, agent) {
					t.Errorf("%s was not made from %s of %s, but of %v", want.attack, want.from, agent, denied)
				}
			}
			if len(denied) != len(want.agents) && want.from == evidence.FromRuntime {
				t.Errorf("%s from %s: of %v, want %v", want.attack, want.from, denied, want.agents)
			}
		}
		if bit := slices.IndexFunc(report.Controls.Rows, func(x evidence.ControlRow) bool { return x.Attack == "topics.kept" && x.Bit }); bit < 0 {
			t.Error("no control of topics.kept bit")
		}
		if _, proof := proven(t, c); !proof.OK() {
			t.Errorf("prove: %v\n%s", broken(proof), proof.Text())
		} else {
			for _, id := range []string{"egress.agent", "syscalls", "privileges", "namespaces", "limits", "mounts", "modes", "sockets", "network", "ids", "writable", "shared"} {
				if !slices.ContainsFunc(proof.Statements, func(s prove.Statement) bool { return s.Agent == layout.TopicsName && s.ID == id && s.Holds }) {
					t.Errorf("prove says nothing of %s of topics", id)
				}
			}
		}
		asCapturedGateways(t, c)

		// A server that the manifest has and whose door is gone is no reason to leave
		// attacks on it out.
		door := layout.Default().Agent("pair", "ci").ServiceSocket(layout.TopicsName)
		if err := os.Remove(door); err != nil {
			t.Fatal(err)
		}
		if r, report := verify(t, c, "--no-controls"); r.Exit != 1 || report.Unproven == 0 {
			t.Errorf("the socket of ci is gone, and verify ends with %d", r.Exit)
		}
		c.Run(t, "down", "--purge")
	})
}

// asCapturedGateways speaks to the server as each gateway does: as its id, at its
// socket, with its token.
func asCapturedGateways(t *testing.T, c stage.CLI) {
	t.Helper()
	var book struct{ Tokens map[string]string }
	raw, err := os.ReadFile(layout.Default().Service(layout.TopicsName).Tokens())
	if err == nil {
		err = json.Unmarshal(raw, &book)
	}
	if err != nil {
		t.Fatal(err)
	}
	zero := int64(0)
	publish := protocol.Publish{Topic: "builds", Key: "captured", Message: []byte("1")}
	read := protocol.Read{Topic: "builds", After: &zero, Limit: 1}
	for name, tc := range map[string]struct{ id, socket, token, publish, read string }{
		"ci":                        {"ci", "ci", "ci", "published", string(deny.ToolNotAllowed)},
		"lead":                      {"lead", "lead", "lead", string(deny.ToolNotAllowed), "messages"},
		"mute":                      {"mute", "mute", "mute", string(deny.ToolNotAllowed), string(deny.ToolNotAllowed)},
		"mute with ci's token":      {"mute", "mute", "ci", string(deny.BadToken), string(deny.BadToken)},
		"mute at ci's socket":       {"mute", "ci", "ci", "EACCES", "EACCES"},
		"another id at ci's socket": {"root", "ci", "ci", "closed", "closed"},
	} {
		id := uint32(0)
		if tc.id != "root" {
			id = stage.Container(t, c.Agent(t, tc.id), "gateway").HostID
		}
		token := book.Tokens["pair/"+tc.token]
		if token == "" {
			t.Fatalf("%s has no token", tc.token)
		}
		socket := layout.Default().Agent("pair", tc.socket).ServiceSocket(layout.TopicsName)
		if got := saysTo(t, id, socket, token, protocol.VerbPublish, publish); got != tc.publish {
			t.Errorf("%s publishes: %s, want %s", name, got, tc.publish)
		}
		if got := saysTo(t, id, socket, token, protocol.VerbRead, read); got != tc.read {
			t.Errorf("%s reads: %s, want %s", name, got, tc.read)
		}
	}
}

// saysTo makes one request of the topics server as an id of the host, and gives
// the answer's verb, the code of a denial, or how the connection was refused.
func saysTo(t *testing.T, id uint32, socket, token, verb string, body any) string {
	t.Helper()
	type dialled struct {
		c   net.Conn
		err error
	}
	done := make(chan dialled)
	go func() {
		runtime.LockOSThread() // never unlocked: the thread, and what it was made, goes with this
		_, _, gid := unix.RawSyscall(unix.SYS_SETRESGID, uintptr(id), uintptr(id), uintptr(id))
		_, _, uid := unix.RawSyscall(unix.SYS_SETRESUID, uintptr(id), uintptr(id), uintptr(id))
		if gid != 0 || uid != 0 {
			done <- dialled{nil, errors.Join(gid, uid)}
			return
		}
		c, err := net.Dial("unix", socket)
		done <- dialled{c, err}
	}()
	d := <-done
	if errors.Is(d.err, unix.EACCES) {
		return "EACCES"
	}
	if d.err != nil {
		t.Fatal(d.err)
	}
	w := wire.New(d.c.(*net.UnixConn))
	defer func() { _ = w.Close() }()
	_ = d.c.SetDeadline(time.Now().Add(10 * time.Second))
	err := hub.Dial(w, protocol.Name, protocol.Version, token)
	var m wire.Message
	if err == nil {
		if err = w.Send(2, verb, body); err == nil {
			m, _, err = w.Recv()
		}
	}
	var reason *deny.Reason
	switch {
	case errors.As(err, &reason):
		return string(reason.Code)
	case err != nil:
		return "closed"
	case m.Verb == protocol.VerbDenied:
		if err := json.Unmarshal(m.Body, &reason); err != nil {
			t.Fatal(err)
		}
		return string(reason.Code)
	}
	return m.Verb
}
