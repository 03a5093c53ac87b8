package evidence

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"net"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"sync"
	"syscall"
	"time"

	"bulkhead/internal/dial"
	"bulkhead/internal/dialer"
	"bulkhead/internal/host/pins"
	"bulkhead/internal/team"
)

// decoyEgress is the attacker's real dialer in the decoy host's network, with
// the warden's end of the pin protocol behind it.
type decoyEgress struct {
	pins   *pins.Server
	dialer *exec.Cmd
	policy *dial.Policy
	place  string // account
	dns    *hostileDNS
}

// hostileDNS answers every name with one address. Those of rebindTo it answers
// with an address outside, and from the second question on with one inward.
type hostileDNS struct {
	mu    sync.Mutex
	asked map[string]int // guarded by mu
}

// rebindTo is where names lead from the second question on.
var rebindTo = map[string]string{"rebind-loopback.example": "127.0.0.1", "rebind-link.example": decoyMetadata}

// rebinding are those names, as the manifest lists them.
func rebinding() []string {
	var out []string
	for _, name := range slices.Sorted(maps.Keys(rebindTo)) {
		out = append(out, name+":80")
	}
	return out
}

// decoyTTL is how long pins live there, and so how long an answer of DNS holds;
// decoyChanging is how long a decoy goes on asking.
const (
	decoyTTL      = 2 * time.Second
	decoyChanging = 15 * time.Second
)

func (d *hostileDNS) Lookup(_ context.Context, name string) ([]netip.Addr, error) {
	to, rebinds := rebindTo[name]
	if !rebinds {
		return []netip.Addr{netip.MustParseAddr(decoyUnlisted)}, nil
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.asked[name]++; d.asked[name] == 1 {
		to = decoyOutside
	}
	return []netip.Addr{netip.MustParseAddr(to)}, nil
}
func (*hostileDNS) SetNames([]string) {}

// forget has every name lead outside once more.
func (d *hostileDNS) forget() {
	d.mu.Lock()
	defer d.mu.Unlock()
	clear(d.asked)
}

// decoyLists are the destinations of the attacker's manifest, and decoyAddresses the
// addresses in it.
func decoyLists() []team.Destination {
	out := []team.Destination{
		{Host: "listed.example", Port: 443, SNI: team.SNIAny, Position: "decoy"},
		{Host: "listed.example", Port: 80, SNI: team.SNIAny, Position: "decoy"},
	}
	for name := range rebindTo {
		out = append(out, team.Destination{Host: name, Port: 80, SNI: team.SNIAny, Position: "decoy"})
	}
	return out
}

func decoyAddresses() map[string][]netip.Addr {
	return map[string][]netip.Addr{"listed.example": {netip.MustParseAddr(decoyListed)}}
}

func newDecoyEgress(s *scene) (*decoyEgress, error) {
	dns := &hostileDNS{asked: map[string]int{}}
	e := &decoyEgress{
		place:  s.a.Place.Account,
		dns:    dns,
		policy: dial.NewPolicy(&team.Agent{Name: "a", Egress: decoyLists(), Hosts: decoyAddresses()}),
		pins: pins.New(pins.Config{
			Table: s.table, Resolver: dns, TTL: decoyTTL,
			Own: func() ([]netip.Addr, error) { return nil, nil }, // the world outside lies on our own loopback
		}),
	}
	gateway, err := listenFor(s.a.Place.DialerSocket(), s.a.IDs.Gateway())
	if err != nil {
		return nil, err
	}
	gateway.SetUnlinkOnClose(false) // the dialer goes on with its copy
	defer gateway.Close()
	pin, err := listenFor(s.a.Place.PinSocket(), s.a.IDs.Dialer)
	if err != nil {
		return nil, err
	}
	if err := e.pins.Add(e.place, s.a.IDs.Dialer, pin, e.policy); err != nil {
		return nil, err
	}
	return e, e.startDialer(s, gateway)
}

// listenFor makes a socket that exactly one group may use.
func listenFor(path string, group uint32) (*net.UnixListener, error) {
	if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil { // #nosec G301 -- as on a real host: the socket itself is closed
		return nil, err
	}
	l, err := net.ListenUnix("unix", &net.UnixAddr{Name: path, Net: "unix"})
	if err != nil {
		return nil, err
	}
	return l, errors.Join(os.Chown(path, 0, int(group)), os.Chmod(path, 0o660)) // #nosec G302 -- the group is one id
}

// startDialer starts bulkhead-net under the id that nftables knows.
func (e *decoyEgress) startDialer(s *scene, gateway *net.UnixListener) error {
	socket, err := gateway.File()
	if err != nil {
		return err
	}
	defer socket.Close()
	raw, err := json.Marshal(dialer.Config{Gateway: s.a.IDs.Gateway(), PinSocket: s.a.Place.PinSocket(), Connections: 512})
	if err != nil {
		return err
	}
	config, give, err := os.Pipe()
	if err != nil {
		return err
	}
	defer config.Close()
	e.dialer = exec.Command(filepath.Join(s.plan.Programs, "bulkhead-net"), "dialer") // #nosec G204 -- ours
	e.dialer.ExtraFiles = []*os.File{socket, config}
	e.dialer.Dir, e.dialer.Env, e.dialer.Stderr = "/", []string{}, os.Stderr
	e.dialer.SysProcAttr = &syscall.SysProcAttr{Credential: &syscall.Credential{Uid: s.a.IDs.Dialer, Gid: s.a.IDs.Dialer}}
	if err := e.dialer.Start(); err != nil {
		return errors.Join(fmt.Errorf("start the dialer: %w", err), give.Close())
	}
	_, err = give.Write(raw)
	return errors.Join(err, give.Close())
}

// guard switches the guard on or off.
func (e *decoyEgress) guard(on bool) error {
	e.dns.forget()
	// Nothing that was pinned before may serve again.
	if err := e.pins.SetPolicy(e.place, dial.NewPolicy(&team.Agent{Name: "a"})); err != nil {
		return err
	}
	if on {
		return e.pins.SetPolicy(e.place, e.policy)
	}
	return e.pins.SetPolicy(e.place, dial.Unguarded("a"))
}

func (e *decoyEgress) close() {
	if e.dialer != nil && e.dialer.Process != nil {
		_ = e.dialer.Process.Kill()
		_ = e.dialer.Wait()
	}
	_ = e.pins.Close()
}
