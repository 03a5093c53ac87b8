package warden

import (
	"context"
	"crypto/rand"
	"encoding/json"
	"errors"
	"fmt"
	"time"

	control "bulkhead/internal/control/protocol"
	"bulkhead/internal/deny"
	front "bulkhead/internal/front/protocol"
	"bulkhead/internal/layout"
)

// Statuses of HTTP (RFC 9110); the warden links no HTTP.
const (
	statusOK      = 200
	statusCreated = 201
)

// Bounds of work for front.
const (
	frontWait = 20 * time.Second // one question to front for work
	madeSlots = 4                // guests that are made at a time: most of it waits for the disk
)

// watchFront asks front again and again what there is to do, and does it.
func (w *Warden) watchFront(ctx context.Context) {
	slots, session := make(chan struct{}, madeSlots), rand.Text()
	for ctx.Err() == nil {
		f := w.service(layout.FrontName)
		if f == nil || len(w.guestTeams()) == 0 {
			pause(ctx, time.Second)
			continue
		}
		var work front.Work
		actx, cancel := context.WithTimeout(ctx, frontWait+serviceAsk)
		err := f.ask(actx, front.VerbWork, front.WorkRequest{Session: session, Wait: frontWait}, &work)
		cancel()
		if err != nil {
			pause(ctx, 200*time.Millisecond) // it is being started
			continue
		}
		for _, a := range work.Wake {
			w.owners.Go(func() { w.wake(ctx, a.Team, a.Name) })
		}
		for _, q := range work.Admin {
			w.owners.Go(func() {
				slots <- struct{}{}
				defer func() { <-slots }()
				w.answerAdmin(ctx, f, q)
			})
		}
	}
}

// answerAdmin has control decide a request to /admin/agents, does what it
// orders, and tells front what to answer.
func (w *Warden) answerAdmin(ctx context.Context, f *service, q front.AdminRequest) {
	out := front.AdminAnswer{ID: q.ID}
	status, body, reason, err := w.doAdmin(ctx, f, q)
	if err == nil && reason == nil {
		out.Status = status
		out.Body, err = json.Marshal(body)
	}
	if err != nil {
		w.log.Error("a request to /admin/agents failed", "method", q.Method, "agent", q.Name, "error", err)
		reason = &deny.Reason{Layer: deny.LayerTools, Code: deny.ToolFailed, Why: "it failed; the warden's log says why", Mend: "ask again: what was done already is not done twice"}
	}
	out.Reason = reason
	ctx, cancel := context.WithTimeout(ctx, serviceAsk)
	defer cancel()
	if err := f.ask(ctx, front.VerbAnswer, out, nil); err != nil && ctx.Err() == nil {
		w.log.Warn("front was not told the answer to a request", "error", err)
	}
}

func (w *Warden) doAdmin(ctx context.Context, f *service, q front.AdminRequest) (status int, body any, reason *deny.Reason, err error) {
	s := w.service(layout.ControlName)
	if s == nil {
		return 0, nil, nil, errors.New("control is not there")
	}
	actx, cancel := context.WithTimeout(ctx, serviceAsk)
	defer cancel()
	var o control.AdminOrder
	if err := s.ask(actx, control.VerbAdmin, control.AdminAsk{Teams: q.Teams, Token: q.Token, Method: q.Method, Name: q.Name, Body: q.Body}, &o); err != nil {
		return 0, nil, nil, err
	}
	if o.Reason != nil {
		return 0, nil, o.Reason, nil
	}
	b, done, err := w.guestBook(o.Team)
	if err != nil {
		return 0, nil, nil, err
	}
	defer done()
	switch o.Do {
	case control.DoMake:
		return w.makeGuest(ctx, b, s, f, o, q.Key)
	case control.DoDelete:
		reason, err := w.deleteGuest(ctx, b, s, o)
		return statusOK, guestDeleted{1, o.Team, o.Name, true}, reason, err
	case control.DoList:
		list := w.listGuests(b, o)
		if o.Name != "" && len(list.Agents) == 0 {
			return 0, nil, noGuest(o.Name), nil
		}
		return statusOK, list, nil, nil
	}
	return 0, nil, nil, fmt.Errorf("control orders %.40q", o.Do)
}

type guestDeleted struct {
	SchemaVersion int    `json:"schemaVersion"`
	Team          string `json:"team"`
	Name          string `json:"name"`
	Deleted       bool   `json:"deleted"`
}

func noGuest(name string) *deny.Reason {
	return &deny.Reason{Layer: deny.LayerTools, Code: deny.ToolMissing, Why: fmt.Sprintf("there is no guest %.40q", name), Mend: "GET /admin/agents lists those that there are"}
}

func conflict(why, mend string) *deny.Reason {
	return &deny.Reason{Layer: deny.LayerTools, Code: deny.ToolConflict, Why: why, Mend: mend}
}
