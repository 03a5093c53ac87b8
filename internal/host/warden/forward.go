package warden

import (
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"time"

	"bulkhead/internal/record"
	"bulkhead/internal/wire"
)

// forward passes one connection to a port of the agent's own loopback on to
// the operator. The warden carries no data: the shim connects, inside, and the
// socket goes through.
func (c *call) forward() error {
	var req wire.ForwardRequest
	if err := json.Unmarshal(c.body, &req); err != nil {
		return badInput("the request does not decode: "+err.Error(), "use the bulkhead program of the same build")
	}
	a, err := c.w.unfenced(req.Team, req.Agent)
	if err != nil {
		return err
	}
	name := a.Place.Name
	if !slices.Contains(a.Want.Ports, req.Port) {
		mend := fmt.Sprintf("add %d to agents.%s.ports in bulkhead.yaml, and run bulkhead up", req.Port, name)
		if len(a.Want.Ports) > 0 {
			mend += fmt.Sprintf("; listed are %v", a.Want.Ports)
		}
		return badInput(fmt.Sprintf("port %d of agent %s is not listed", req.Port, name), mend)
	}
	down := func(err error) error { return notRunning(runtimeName, name, err) }
	shim, err := dialWire(c.ctx, a.Place.ShimSocket(runtimeName), wire.ShimProtocol, wire.ShimVersion)
	if err != nil {
		return down(err)
	}
	defer func() { _ = shim.Close() }()
	res := wire.ForwardResult{SchemaVersion: 1, Team: a.Place.Team, Agent: name, Port: req.Port}
	if req.Check {
		return c.conn.Send(c.id, wire.VerbResult, res)
	}
	inside, outside, err := a.socketFor(runtimeName)
	if err != nil {
		return err
	}
	defer closeFiles(outside)
	err = shim.Send(1, wire.VerbConnect, wire.ConnectRequest{Port: req.Port}, inside...)
	closeFiles(inside)
	if err != nil {
		return down(err)
	}
	m, files, err := shim.Recv()
	files = append(files, outside...)
	defer closeFiles(files)
	if err != nil {
		return down(err)
	}
	var none struct{}
	if err := decode(m, &none); err != nil {
		var f *fault
		if errors.As(err, &f) {
			return &fault{wire.Failure{Message: f.Message, Exit: wire.ExitFailed, Mend: fmt.Sprintf("see whether the agent listens there: bulkhead exec %s -- netstat -tln; an agent started by an older build needs bulkhead restart %s", name, name)}}
		}
		return err
	}
	if m.Verb != wire.VerbConnected || len(files) != 1 {
		return down(fmt.Errorf("its shim answered %.40q with %d descriptors", m.Verb, len(files)))
	}
	if n, tell := c.w.forwards.count(forwardKey{a.Place.Account, req.Port, c.uid}, time.Now()); tell {
		x := &act{c: c, a: a, target: "port " + strconv.Itoa(int(req.Port))}
		x.tell(record.Allowed, "forward"+x.by(), n)
	}
	return c.conn.Send(c.id, wire.VerbResult, res, files[0])
}
