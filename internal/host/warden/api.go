package warden

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"slices"
	"strconv"
	"strings"
	"time"

	"bulkhead/internal/deny"
	"bulkhead/internal/identity"
	"bulkhead/internal/wire"
)

// operatorsGroupName is the group whose members may look but not change.
const operatorsGroupName = "bulkhead-operators"

// readOnly are the verbs of that group.
var readOnly = []string{wire.VerbStatus, wire.VerbPlan}

// fault is an error with the exit code and mend that the operator gets.
type fault struct{ wire.Failure }

func (f *fault) Error() string { return f.Message }

func badInput(msg, mend string) error {
	return &fault{wire.Failure{Message: msg, Mend: mend, Exit: wire.ExitBadInput}}
}

func failures(lines []string) error {
	return &fault{wire.Failure{Message: strings.Join(lines, "\n"), Exit: wire.ExitFailed}}
}

// serve answers operators until ctx ends or nothing is left to do.
func (w *Warden) serve(ln *net.UnixListener) error {
	w.owners.Go(func() {
		<-w.ctx.Done()
		_ = ln.Close()
	})
	for {
		c, err := ln.AcceptUnix()
		if err != nil {
			if w.ctx.Err() != nil {
				return nil //nolint:nilerr // the listener was closed because the warden ends
			}
			if errors.Is(err, net.ErrClosed) {
				return fmt.Errorf("warden: %w", err)
			}
			w.log.Error("accept", "error", err)
			pause(w.ctx, 100*time.Millisecond)
			continue
		}
		w.owners.Go(func() {
			w.begin()
			verb := w.answer(c)
			w.end()
			// After a down, and after an up that was refused. Whoever only
			// greeted may be about to ask.
			if verb == wire.VerbDown || verb == wire.VerbApply {
				w.leaveWhenIdle()
			}
		})
	}
}

// requestTimeout bounds how long an operator may take to say what is wanted.
const requestTimeout = 10 * time.Second

// call is one request of one operator.
type call struct {
	w    *Warden
	ctx  context.Context
	conn *wire.Conn
	id   uint64
	uid  uint32 // the operator's
	body json.RawMessage
}

// answer serves one connection and says what was asked.
func (w *Warden) answer(u *net.UnixConn) (verb string) {
	conn := wire.New(u)
	defer func() { _ = conn.Close() }()
	stop := context.AfterFunc(w.ctx, func() { _ = u.SetDeadline(time.Now()) })
	defer stop()
	peer, err := identity.PeerOf(u)
	if err != nil {
		w.log.Warn("operator without credentials", "error", err)
		return ""
	}
	if _, err := conn.GreetAs(wire.Hello{Protocol: wire.WardenProtocol, Version: wire.WardenVersion, Build: w.cfg.Build}); err != nil {
		w.log.Warn("operator", "uid", peer.UID, "error", err)
		return ""
	}
	_ = u.SetReadDeadline(time.Now().Add(requestTimeout))
	m, files, err := conn.Recv()
	if err != nil {
		return ""
	}
	for _, f := range files {
		_ = f.Close()
	}
	_ = u.SetReadDeadline(time.Time{})
	c := &call{w: w, ctx: w.ctx, conn: conn, id: m.ID, uid: peer.UID, body: m.Body}
	if err := w.may(peer, m.Verb); err != nil {
		c.fail(err)
		return m.Verb
	}
	w.log.Debug("request", "verb", m.Verb, "uid", peer.UID)
	if err := c.dispatch(m.Verb); err != nil {
		c.fail(err)
	}
	return m.Verb
}

// may says whether the peer may use the verb.
func (w *Warden) may(p identity.Peer, verb string) error {
	if p.UID == 0 {
		return nil
	}
	gid, ok := operatorsGID("/etc/group")
	if ok && p.In(gid) && slices.Contains(readOnly, verb) {
		return nil
	}
	r := &deny.Reason{
		Layer: deny.LayerHost, Code: deny.NotOperator, What: verb + " by user id " + strconv.FormatUint(uint64(p.UID), 10),
		Why: "only root may do this; members of the group " + operatorsGroupName + " may ask for status and plan", Mend: "sudo",
	}
	return &fault{wire.Failure{Message: r.Error(), Mend: r.Mend, Exit: wire.ExitRefused}}
}

func (c *call) dispatch(verb string) error {
	switch verb {
	case wire.VerbApply:
		return serveCall(c, func(r wire.ApplyRequest) (any, error) { return c.w.apply(c.ctx, r, c.say) })
	case wire.VerbPlan:
		return serveCall(c, func(r wire.ApplyRequest) (any, error) { return c.w.plan(c.ctx, r) })
	case wire.VerbStatus:
		return serveCall(c, func(r wire.TeamRequest) (any, error) { return c.w.statusOf(c.ctx, r) })
	case wire.VerbHalt:
		return serveCall(c, func(r wire.AgentRequest) (any, error) { return c.w.stop(c.ctx, r) })
	case wire.VerbRestart:
		return serveCall(c, func(r wire.AgentRequest) (any, error) { return c.w.restartAgents(c.ctx, r, c.say) })
	case wire.VerbDown:
		return serveCall(c, func(r wire.DownRequest) (any, error) { return c.w.down(c.ctx, r, c.say) })
	case wire.VerbLogs:
		return c.logs()
	case wire.VerbForward:
		return c.forward()
	case wire.VerbWorkspace:
		return c.workspace()
	case wire.VerbWatch:
		return c.watch()
	case wire.VerbCalls:
		return c.calls()
	case wire.VerbExec:
		return c.exec()
	case wire.VerbAttach:
		return c.attach()
	case wire.VerbRun:
		return c.run()
	case wire.VerbVerify:
		return serveCall(c, func(r wire.VerifyRequest) (any, error) {
			ctx, cancel := c.whileAsked()
			defer cancel()
			return c.w.verify(ctx, r, c.say)
		})
	case wire.VerbProve:
		return serveCall(c, func(r wire.TeamRequest) (any, error) { return c.w.prove(c.ctx, r) })
	case wire.VerbEvidenceMake:
		return serveCall(c, func(r wire.EvidenceRequest) (any, error) {
			ctx, cancel := c.whileAsked()
			defer cancel()
			return c.w.makeEvidence(ctx, r, c.say)
		})
	case wire.VerbEvidenceList:
		return serveCall(c, func(r wire.TeamRequest) (any, error) { return c.w.listEvidence(r) })
	case wire.VerbEvidenceFile:
		return c.evidenceFile()
	case wire.VerbEvidenceKeys:
		return serveCall(c, func(struct{}) (any, error) { return c.w.evidenceKeys() })
	case wire.VerbEvidenceRotate:
		return serveCall(c, func(struct{}) (any, error) { return c.w.rotateEvidenceKey() })
	case wire.VerbChecks:
		return serveCall(c, func(r wire.TeamRequest) (any, error) { return c.w.summary(r) })
	case wire.VerbVerifyWatch:
		return c.watchChecks()
	case wire.VerbDenials:
		return serveCall(c, func(r wire.AgentRequest) (any, error) { return c.w.denialsOf(r) })
	case wire.VerbAllow:
		return serveCall(c, func(r wire.AllowRequest) (any, error) { return c.w.allow(c.ctx, r, c.uid) })
	case wire.VerbRevoke:
		return serveCall(c, func(r wire.RevokeRequest) (any, error) { return c.w.revoke(c.ctx, r) })
	case wire.VerbGrants:
		return serveCall(c, func(r wire.AgentRequest) (any, error) { return c.w.grantsOf(r) })
	case wire.VerbApprovals:
		return serveCall(c, func(r wire.ApprovalsRequest) (any, error) { return c.w.approvals(c.ctx, r) })
	case wire.VerbDecide:
		return serveCall(c, func(r wire.DecideRequest) (any, error) { return c.w.decide(c.ctx, r, c.uid) })
	case wire.VerbExecutions:
		return serveCall(c, func(r wire.ExecutionsRequest) (any, error) { return c.w.executions(c.ctx, r) })
	case wire.VerbExecution:
		return serveCall(c, func(r wire.ExecutionRequest) (any, error) { return c.w.execution(c.ctx, r, c.uid) })
	case wire.VerbPermits:
		return serveCall(c, func(r wire.AgentRequest) (any, error) { return c.w.permits(c.ctx, r) })
	case wire.VerbRevokePermit:
		return serveCall(c, func(r wire.RevokePermitRequest) (any, error) { return c.w.revokePermit(c.ctx, r, c.uid) })
	case wire.VerbWhy:
		return serveCall(c, func(r wire.WhyRequest) (any, error) { return c.w.why(c.ctx, r) })
	case wire.VerbMessages:
		return c.messages()
	case wire.VerbMessagesBackup:
		return c.backup()
	case wire.VerbMessagesRepair:
		return serveCall(c, func(r wire.TeamRequest) (any, error) { return c.w.repair(c.ctx, r, c.uid, c.say) })
	case wire.VerbFence:
		return serveCall(c, func(r wire.FenceRequest) (any, error) { return c.w.fenceAgents(c.ctx, r, operator(c.uid)) })
	case wire.VerbUnfence:
		return serveCall(c, func(r wire.AgentRequest) (any, error) { return c.w.unfence(c.ctx, r) })
	case wire.VerbTokens:
		return c.tokens()
	case wire.VerbAudit:
		return c.audit()
	case wire.VerbShutdown:
		err := serveCall(c, func(struct{}) (any, error) { return struct{}{}, nil })
		c.w.cancel()
		return err
	}
	return badInput(fmt.Sprintf("the warden does not know the verb %q", verb), "use the bulkhead program of the same build")
}

// serveCall decodes the request, does it, and sends its result, also when it
// comes with an error.
func serveCall[T any](c *call, do func(T) (any, error)) error {
	var req T
	if err := json.Unmarshal(c.body, &req); err != nil {
		return badInput("the request does not decode: "+err.Error(), "use the bulkhead program of the same build")
	}
	res, err := do(req)
	if err != nil {
		return err
	}
	return c.conn.Send(c.id, wire.VerbResult, res)
}

func (c *call) say(agent, step string) {
	// An operator who left does not stop the work.
	_ = c.conn.Send(c.id, wire.VerbProgress, wire.Progress{Agent: agent, Step: step})
}

// whileAsked ends when the operator leaves: for work that only its answer is
// wanted of.
func (c *call) whileAsked() (context.Context, context.CancelFunc) {
	ctx, cancel := context.WithCancel(c.ctx)
	go func() {
		// Nothing more is asked on this connection: whatever is read is its end.
		_, files, _ := c.conn.Recv()
		closeFiles(files)
		cancel()
	}()
	return ctx, cancel
}

func (c *call) fail(err error) {
	f := wire.Failure{Message: err.Error(), Exit: wire.ExitFailed}
	var known *fault
	if errors.As(err, &known) {
		f = known.Failure
	}
	_ = c.conn.Send(c.id, wire.VerbError, f)
}

// idlePatience is how long a warden without a team waits for an operator.
const idlePatience = 3 * time.Second

// watchIdle ends a warden that nobody needs: one that was started and not
// used, because its up was killed or another warden was first.
func (w *Warden) watchIdle() {
	if w.cfg.Stay {
		return
	}
	w.owners.Go(func() {
		for w.ctx.Err() == nil {
			pause(w.ctx, idlePatience)
			w.leaveWhenIdle()
		}
	})
}

// leaveWhenIdle ends the warden when no team is left and nobody asks anything,
// unless it is to stay.
func (w *Warden) leaveWhenIdle() {
	if w.cfg.Stay || w.ctx.Err() != nil || !w.change.TryLock() {
		return
	}
	defer w.change.Unlock()
	w.mu.Lock()
	idle := len(w.teams) == 0 && len(w.unreadable) == 0 && w.calls == 0
	w.mu.Unlock()
	if !idle {
		return
	}
	w.log.Info("no team is left; ending")
	if err := w.sweepRun(); err != nil {
		w.log.Warn("clearing the run folder", "error", err)
	}
	w.cancel()
}

// begin and end count the calls that are being answered.
func (w *Warden) begin() {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.calls++
}

func (w *Warden) end() {
	w.mu.Lock()
	w.calls--
	w.mu.Unlock()
	w.trim.Reset(trimAfter)
}

// groupID finds a group in the text of a group file.
func groupID(text, name string) (uint32, bool) {
	for line := range strings.Lines(text) {
		f := strings.Split(strings.TrimSpace(line), ":")
		if len(f) == 4 && f[0] == name {
			if n, err := strconv.ParseUint(f[2], 10, 32); err == nil {
				return uint32(n), true
			}
		}
	}
	return 0, false
}
