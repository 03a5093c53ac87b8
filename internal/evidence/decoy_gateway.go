package evidence

import (
	"bufio"
	"crypto/sha256"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strings"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"bulkhead/internal/engine"
	"bulkhead/internal/evidence/attempt"
	"bulkhead/internal/gateway/gatewayconfig"
	"bulkhead/internal/team"
	"bulkhead/internal/tooltoken"
	"bulkhead/internal/wire"
)

// gate is one gateway of the decoy host. The attacker's runtime is shown one of
// them.
type gate string

// The gateways.
const (
	ownGate   gate = "own"   // the attacker's
	openGate  gate = "open"  // the attacker's, for whom everything is listed: the guard is off
	otherGate gate = "other" // the target's, which keeps the canary
)

// gateOf is the gateway that a decoy is shown.
func gateOf(s *engine.Spec) gate {
	switch {
	case !s.Has(engine.MechGateway):
		return otherGate
	case !s.Has(engine.MechGuard):
		return openGate
	}
	return ownGate
}

// Where decoys find their gateway, and what is in that folder.
const (
	insideGate = "/run/gateway"
	gateSocket = "gateway.sock"
	gateToken  = "token"
)

// canaryName is what everything is called in which the target keeps its canary.
const canaryName = "bulkhead-canary"

// canaryTime is the canary of tasks, of which tools show when they are due.
const canaryTime = "47 23 29 2 *"

func (g gate) folder() string { return filepath.Join("/decoy/gateways", string(g)) }
func (g gate) shown() string  { return filepath.Join(g.folder(), "shown") }
func (g gate) socket() string { return filepath.Join(g.shown(), gateSocket) }

// secret is of this gateway alone, and token what its tools are called with.
func (g gate) secret() string { return fmt.Sprintf("%x", sha256.Sum256([]byte(g))) }
func (g gate) token() string  { return tooltoken.Of(g.secret()) }

// decoyTools is what gateways of decoys serve. No code runs for them.
var decoyTools = &team.Tools{
	Allow: []string{"mem", "vec", "fs", "db", "net", "events", "proc"}, CodeImage: "decoy",
	RatePerMinute: 100_000, MemoryBytes: 16 << 20, StorageBytes: 16 << 20,
}

// decoyGateways are the real gateways of the decoy host.
type decoyGateways struct{ running []*exec.Cmd }

// newDecoyGateways starts them, and has the target keep its canary.
func newDecoyGateways(s *scene) (_ *decoyGateways, err error) {
	g := &decoyGateways{}
	defer func() {
		if err != nil {
			g.close()
		}
	}()
	everything := decoyLists()
	for _, d := range redirections {
		to, err := netip.ParseAddrPort(d)
		if err != nil { // a name
			everything = append(everything, team.Destination{Host: d[:lastColon(d)], Port: 80, SNI: team.SNIAny, Position: "decoy"})
			continue
		}
		everything = append(everything, team.Destination{Address: to.Addr(), Port: to.Port(), SNI: team.SNIAny, Position: "decoy"})
	}
	for _, one := range []struct {
		gate
		of     Agent
		egress []team.Destination
	}{{ownGate, s.a, decoyLists()}, {openGate, s.a, everything}, {otherGate, s.b, nil}} {
		if err := g.start(s, one.gate, one.of, one.egress); err != nil {
			return nil, err
		}
	}
	return g, sing(s.a.IDs.Runtime())
}

// start runs one, as its agent's id. All of them serve the attacker's runtime: that
// it is shown another's is what the decoy is about.
func (g *decoyGateways) start(s *scene, at gate, of Agent, egress []team.Destination) error {
	data := filepath.Join(at.folder(), "data")
	id := int(of.IDs.Gateway())
	if err := errors.Join(os.MkdirAll(at.shown(), 0o755), os.MkdirAll(data, 0o700), os.Chown(data, id, id)); err != nil { // #nosec G301 -- the socket is closed
		return err
	}
	token := filepath.Join(at.shown(), gateToken)
	runtimeID := int(s.a.IDs.Runtime())
	if err := errors.Join(os.WriteFile(token, []byte(at.token()), 0o400), os.Chown(token, runtimeID, runtimeID)); err != nil {
		return err
	}
	l, err := listenFor(at.socket(), s.a.IDs.Runtime())
	if err != nil {
		return err
	}
	l.SetUnlinkOnClose(false) // the gateway goes on with its copy
	defer func() { _ = l.Close() }()
	socket, err := l.File()
	if err != nil {
		return err
	}
	defer func() { _ = socket.Close() }()
	raw, err := json.Marshal(gatewayconfig.Config{
		Team: "decoy", Agent: of.Name, Token: at.secret(), RuntimeID: s.a.IDs.Runtime(), Egress: egress, Hosts: decoyAddresses(),
		DialerSocket: s.a.Place.DialerSocket(), Tools: decoyTools, Data: data, CodeSocket: of.Place.ProcSocket(),
	})
	if err != nil {
		return err
	}
	config, give, err := os.Pipe()
	if err != nil {
		return err
	}
	defer func() { _ = config.Close() }()
	c := exec.Command(filepath.Join(s.plan.Programs, "bulkhead-serve"), "gateway") // #nosec G204 -- ours
	c.ExtraFiles = []*os.File{socket, config}
	c.Dir, c.Env, c.Stderr = "/", []string{}, os.Stderr
	c.SysProcAttr = &syscall.SysProcAttr{Credential: &syscall.Credential{Uid: of.IDs.Gateway(), Gid: of.IDs.Gateway()}}
	if err := c.Start(); err != nil {
		return errors.Join(fmt.Errorf("start a gateway: %w", err), give.Close())
	}
	g.running = append(g.running, c)
	_, err = give.Write(raw)
	return errors.Join(err, give.Close())
}

func (g *decoyGateways) close() {
	if g == nil {
		return
	}
	for _, c := range g.running {
		_ = c.Process.Kill()
		_ = c.Wait()
	}
}

// sing has the target keep the canary in everything that its gateway keeps, by the
// tools that an agent uses.
func sing(id uint32) error {
	for _, one := range [][2]string{
		{"fs_write", `{"path":"` + canaryName + `","text":"` + attempt.Canary + `"}`},
		{"fs_mkdir", `{"path":"` + attempt.Canary + `"}`},
		{"db_create_table", `{"table":"bulkhead_canary","schema":[{"column":"word","type":"text"}]}`},
		{"db_insert", `{"table":"bulkhead_canary","data":{"word":"` + attempt.Canary + `"}}`},
		{"mem_set", `{"key":"` + canaryName + `","value":"` + attempt.Canary + `"}`},
		{"mem_remember", `{"key":"` + canaryName + `","content":"the canary is ` + attempt.Canary + `"}`},
		{"vec_upsert", `{"id":"` + attempt.Canary + `","vector":[1,0]}`},
		{"events_subscribe", `{"topic":"` + canaryName + `","subscription":"` + canaryName + `"}`},
		{"events_publish", `{"topic":"` + canaryName + `","message":"` + attempt.Canary + `"}`},
		{"events_subscribe", `{"topic":"` + attempt.Canary + `","subscription":"` + canaryName + `"}`},
		{"proc_schedule", `{"expression":"` + canaryTime + `","tool":"mem_get","input":{"key":"` + canaryName + `"}}`},
	} {
		if err := callAs(id, otherGate, one[0], one[1]); err != nil {
			return fmt.Errorf("the target keeps its canary: %s: %w", one[0], err)
		}
	}
	return nil
}

// callAs calls a tool of a gateway as an id.
func callAs(id uint32, g gate, name, input string) error {
	done := make(chan error, 1)
	go func() {
		runtime.LockOSThread() // never unlocked: its ids go with the thread
		done <- func() error {
			for _, call := range []uintptr{unix.SYS_SETRESGID, unix.SYS_SETRESUID} { // of this thread alone
				if _, _, e := unix.RawSyscall(call, ^uintptr(0), uintptr(id), ^uintptr(0)); e != 0 {
					return e
				}
			}
			c, err := net.DialTimeout("unix", g.socket(), 5*time.Second)
			if err != nil {
				return err
			}
			defer func() { _ = c.Close() }()
			if err := c.SetDeadline(time.Now().Add(10 * time.Second)); err != nil {
				return err
			}
			if _, err := fmt.Fprintf(c, "POST /v1/tools/%s HTTP/1.1\r\nHost: %s\r\nAuthorization: Bearer %s\r\nContent-Type: application/json\r\nContent-Length: %d\r\nConnection: close\r\n\r\n%s",
				name, wire.OwnName, g.token(), len(input), input); err != nil {
				return err
			}
			r := bufio.NewReader(io.LimitReader(c, 64<<10))
			status, err := r.ReadString('\n')
			if f := strings.Fields(status); err != nil || len(f) < 2 || !strings.HasPrefix(f[1], "2") {
				rest, _ := io.ReadAll(r)
				return errors.Join(fmt.Errorf("the gateway answers %q: %.300s", strings.TrimSpace(status), rest), err)
			}
			return nil
		}()
	}()
	return <-done
}
