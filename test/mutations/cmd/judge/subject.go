package main

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os/exec"
	"strconv"
	"strings"

	"bulkhead/internal/engine"
	"bulkhead/internal/layout"
	"bulkhead/internal/prove"
)

// statements are what prove says of one container that a program starts.
func (j *judge) statements(ctx context.Context, program, role string) ([]prove.Statement, error) {
	j.count++
	spec := engine.Spec{
		Version: engine.SpecVersion, Team: "mutant", Agent: "a", Name: fmt.Sprint(role, "-", j.count), Role: engine.Role(role),
		Root: engine.Root{Path: j.root}, Hostname: "mutant", Limits: engine.DefaultLimits(), Dir: "/",
		Mounts: []engine.Mount{
			{Kind: engine.MountBind, Source: j.plan.Programs, Target: "/programs", Exec: true},
			{Kind: engine.MountTmpfs, Target: "/tmp", Writable: true, Size: 1 << 20, Mode: 0o1777},
		},
		Command: []string{"/programs/bulkhead-probe", "child"},
	}
	of := func(inside, host uint32) engine.User {
		return engine.User{ID: inside, Map: []engine.IDMap{{Inside: inside, Host: host}}}
	}
	switch spec.Role {
	case engine.RoleGateway:
		spec.User = of(layout.GatewayID, agent.IDs.Gateway())
	case engine.RoleRun: // as a cell of code
		spec.User = of(layout.ProcID, agent.IDs.Proc())
	case engine.RoleService:
		spec.User = engine.User{ID: quiet.IDs.Account}
	default:
		spec.User = of(layout.RuntimeID, agent.IDs.Runtime())
	}
	spec.Cgroup = "mutant/" + spec.Name
	raw, err := json.Marshal(spec)
	if err != nil {
		return nil, err
	}
	var errs bytes.Buffer
	c := exec.CommandContext(ctx, program) // #nosec G204 -- of the plan
	c.Stderr = &errs
	in, err := c.StdinPipe()
	if err != nil {
		return nil, err
	}
	out, err := c.StdoutPipe()
	if err != nil {
		return nil, err
	}
	if err := c.Start(); err != nil {
		return nil, err
	}
	_, werr := in.Write(raw)
	line, rerr := bufio.NewReader(out).ReadString('\n')
	var list []prove.Statement
	pid, err := strconv.Atoi(strings.TrimSpace(line))
	if err = errors.Join(werr, rerr, err); err == nil {
		list, err = j.prove(ctx, pid, spec)
	}
	_ = in.Close()
	_ = c.Wait() // how it ends says nothing about who watched
	if err != nil {
		return nil, fmt.Errorf("%w: %s", err, strings.TrimSpace(errs.String()))
	}
	return list, nil
}

// prove makes the statements, as the warden has them made.
func (j *judge) prove(ctx context.Context, pid int, spec engine.Spec) ([]prove.Statement, error) {
	one := agent
	if spec.Role == engine.RoleService {
		one = quiet
	}
	one.Processes = []prove.Process{{PID: pid, Role: spec.Role}}
	g, err := j.groups.Group(spec.Cgroup)
	if err != nil {
		return nil, err
	}
	l, err := g.Limits()
	if err != nil {
		return nil, err
	}
	for what, v := range map[string]int64{"memory": l.MemoryBytes, "processes": l.PIDs, "processor": l.MilliCPU} {
		one.Limits = append(one.Limits, prove.Limit{What: what, File: g.Full(), Value: fmt.Sprint(v), Bound: v > 0})
	}
	want := spec.Limits.WithDefaults()
	one.Resources = prove.Resources{NoFile: want.NoFile, CoreBytes: want.CoreBytes}
	r, err := prove.Team(ctx, prove.Request{Team: "mutant", Table: "bulkhead", Agents: []prove.Agent{one}})
	if err != nil {
		return nil, err
	}
	return r.Statements, nil
}
