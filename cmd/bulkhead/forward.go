package main

import (
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"io"
	"net"
	"net/netip"
	"sync"
	"time"

	"github.com/spf13/cobra"

	"bulkhead/internal/client"
	"bulkhead/internal/terminal"
	"bulkhead/internal/wire"
)

// maxForwarded bounds the connections that are carried at a time.
const maxForwarded = 256

// forwarding is the JSON form of forward, printed once it listens.
type forwarding struct {
	SchemaVersion int            `json:"schemaVersion"`
	Team          string         `json:"team"`
	Agent         string         `json:"agent"`
	Forwards      []forwardedOne `json:"forwards"`
}

type forwardedOne struct {
	Listen string `json:"listen"`
	Port   uint16 `json:"port"`
}

func newForwardCommand(a *app) *cobra.Command {
	var listen string
	c := &cobra.Command{
		Use:   "forward AGENT PORT...",
		Short: "Reach a port on which an agent listens, while this command runs",
		Long: `Listen on this host and carry each connection to a port on which the agent listens,
inside, until interrupted. Only ports that the manifest lists under "ports" can be
reached. Each agent has an address of its own in 127.0.0.0/8, so that every agent
may have its port 8080; --listen takes another one.

The agent gains nothing by it: it cannot connect to this host. Everybody who has an
account on this host can use the listener while it is there.`,
		Example: `  sudo bulkhead forward writer 8080
  sudo bulkhead forward writer 8080 --listen 127.0.0.1:9000`,
		Args: cobra.MinimumNArgs(2),
		RunE: func(c *cobra.Command, args []string) error {
			return a.forwardPorts(c.Context(), args[0], args[1:], listen)
		},
	}
	c.Flags().StringVar(&listen, "listen", "", "where to listen, like 127.0.0.1:9000; by default at the agent's own address, with the same port")
	return c
}

// loopbackOf is the agent's address on this host: always the same, and hardly
// ever another agent's (22 bits of a digest). It keeps clear of 127.0.0.0/10,
// where services of the host are.
func loopbackOf(team, agent string) netip.Addr {
	sum := sha256.Sum256([]byte(team + "\x00" + agent))
	return netip.AddrFrom4([4]byte{127, 64 + sum[0]%64, sum[1], 1 + sum[2]%254})
}

func (a *app) forwardPorts(ctx context.Context, agent string, ports []string, listen string) error {
	if listen != "" {
		at, err := netip.ParseAddrPort(listen)
		if err != nil || !at.Addr().IsLoopback() {
			return badInput(listen+" is not an address of this host's loopback with a port", "say --listen 127.0.0.1:9000; to publish it, put a proxy of yours in front")
		}
		if len(ports) > 1 {
			return badInput("--listen is for one port", "run the command once for each port")
		}
	}
	numbers := make([]uint16, len(ports))
	for i, text := range ports {
		var err error
		if numbers[i], err = port(text); err != nil {
			return err
		}
	}
	team, err := a.theTeam(ctx)
	if err != nil {
		return err
	}
	shown := forwarding{SchemaVersion: 1, Team: team, Agent: agent}
	var listeners []net.Listener
	defer func() {
		for _, l := range listeners {
			_ = l.Close()
		}
	}()
	for _, port := range numbers {
		req := wire.ForwardRequest{Team: team, Agent: agent, Port: port, Check: true}
		if err := a.client().Call(ctx, wire.VerbForward, req, nil, a.progress); err != nil {
			return err
		}
		at := listen
		if at == "" {
			at = netip.AddrPortFrom(loopbackOf(team, agent), port).String()
		}
		var lc net.ListenConfig
		l, err := lc.Listen(ctx, "tcp", at)
		if err != nil {
			return badInput("cannot listen on "+at+": "+err.Error(), "say another place with --listen 127.0.0.1:9000")
		}
		listeners = append(listeners, l)
		shown.Forwards = append(shown.Forwards, forwardedOne{l.Addr().String(), port})
	}
	if a.json {
		if err := a.encode(shown, ""); err != nil {
			return err
		}
	} else {
		for _, f := range shown.Forwards {
			fmt.Fprintf(a.out, "%s -> port %d of %s\n", f.Listen, f.Port, terminal.Line(agent))
		}
	}
	return a.carry(ctx, team, agent, listeners, shown.Forwards)
}

// carry serves all listeners until ctx ends.
func (a *app) carry(ctx context.Context, team, agent string, listeners []net.Listener, to []forwardedOne) error {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	slots := make(chan struct{}, maxForwarded)
	failed := make(chan error, len(listeners))
	var work sync.WaitGroup
	var said sync.Mutex
	for i, l := range listeners {
		stop := context.AfterFunc(ctx, func() { _ = l.Close() })
		defer stop()
		req := wire.ForwardRequest{Team: team, Agent: agent, Port: to[i].Port}
		work.Go(func() {
			defer cancel()
			for {
				c, err := l.Accept()
				if ctx.Err() != nil {
					return
				}
				if err != nil {
					failed <- err
					return
				}
				select {
				case slots <- struct{}{}:
				default:
					_ = c.Close()
					continue
				}
				work.Go(func() {
					defer func() { <-slots }()
					defer func() { _ = c.Close() }()
					up, err := a.client().Forward(ctx, req)
					if err != nil {
						said.Lock()
						defer said.Unlock()
						fmt.Fprintln(a.err, "  "+terminal.Line(err.Error()))
						return
					}
					join(ctx, c.(*net.TCPConn), up)
				})
			}
		})
	}
	<-ctx.Done()
	work.Wait()
	select {
	case err := <-failed:
		return err
	default:
		return nil // the operator has seen enough
	}
}

// join copies both ways until both sides have ended, or ctx has.
func join(ctx context.Context, x, y client.Stream) {
	stop := context.AfterFunc(ctx, func() {
		_ = x.SetDeadline(time.Now())
		_ = y.SetDeadline(time.Now())
	})
	defer stop()
	var both sync.WaitGroup
	for _, way := range []struct{ from, to client.Stream }{{x, y}, {y, x}} {
		both.Go(func() {
			_, err := io.Copy(way.to, way.from)
			_ = way.to.CloseWrite()
			if err != nil && !errors.Is(err, io.EOF) { // one direction is broken: so is the other
				_ = x.Close()
				_ = y.Close()
			}
		})
	}
	both.Wait()
	_ = y.Close()
}
