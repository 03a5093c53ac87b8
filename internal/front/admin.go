package front

import (
	"context"
	"errors"
	"fmt"
	"io"
	"math"
	"net/http"
	"strconv"
	"strings"
	"time"

	"bulkhead/internal/control/admintoken"
	"bulkhead/internal/deny"
	"bulkhead/internal/front/protocol"
)

// adminPath is where agents are made that have no runtime.
const adminPath = "/admin/agents"

// Limits of a request there.
const (
	maxAdminBody = 256 << 10
	maxKey       = 200
	adminTimeout = 2 * time.Minute // others may be made first
)

// admin serves adminPath at one address. It checks the token, and lays the
// request down for the warden, which has control decide.
type admin struct {
	s     *Server
	guard *admintoken.Guard
	known []admintoken.Hash
	teams []string // of the same places
}

func newAdmin(s *Server, l protocol.Listener) *admin {
	a := &admin{s: s, guard: admintoken.NewGuard(nil)}
	for _, g := range l.Guests {
		a.known, a.teams = append(a.known, g.Token), append(a.teams, g.Team)
	}
	return a
}

func (a *admin) serve(w http.ResponseWriter, r *http.Request) {
	q, reason := a.request(w, r)
	if reason == nil {
		reason = a.pass(w, r, q)
	}
	if reason != nil {
		reason.What = r.Method + " " + clip(r.URL.Path)
		a.s.refuse(w, "", "", reason)
	}
}

// request reads what is asked, once the token was right.
func (a *admin) request(w http.ResponseWriter, r *http.Request) (q protocol.AdminRequest, reason *deny.Reason) {
	if len(a.known) == 0 {
		return q, &deny.Reason{
			Layer: deny.LayerTools, Code: deny.ToolNotAllowed, Why: "no team at this address lets agents be made",
			Mend: "state the ceiling of what they may be given: front.guests in bulkhead.yaml",
		}
	}
	if reason := unfit(r); reason != nil {
		return q, reason
	}
	text, reason := bearer(r)
	if reason == nil {
		reason = a.check(text)
	}
	if reason != nil {
		return q, reason
	}
	invalid := func(why, mend string) *deny.Reason {
		return &deny.Reason{Layer: deny.LayerTools, Code: deny.ToolInvalid, Why: why, Mend: mend}
	}
	q = protocol.AdminRequest{Teams: a.teams, Token: text, Method: r.Method, Key: r.Header.Get("Idempotency-Key")}
	named := false
	q.Name, named = strings.CutPrefix(r.URL.Path, adminPath+"/")
	if !named {
		q.Name = ""
	}
	switch {
	case len(q.Key) > maxKey:
		return q, invalid(fmt.Sprintf("the Idempotency-Key has more than %d characters", maxKey), "send a shorter one")
	case named && (q.Name == "" || strings.Contains(q.Name, "/")):
		return q, invalid("the path names no agent", "ask for "+adminPath+"/NAME")
	case r.Method == http.MethodPost && !named, r.Method == http.MethodGet, r.Method == http.MethodDelete && named:
	default:
		return q, invalid("there is no "+r.Method+" of that path", "POST and GET "+adminPath+", GET and DELETE "+adminPath+"/NAME")
	}
	if r.Method != http.MethodPost {
		return q, nil
	}
	var err error
	if q.Body, err = io.ReadAll(http.MaxBytesReader(w, r.Body, maxAdminBody)); err != nil {
		var large *http.MaxBytesError
		if errors.As(err, &large) {
			return q, &deny.Reason{Layer: deny.LayerTools, Code: deny.ToolTooLarge, Why: fmt.Sprintf("the body has more than %d bytes", maxAdminBody), Mend: "name fewer destinations"}
		}
		return q, invalid("the body ended early", "send as many bytes as Content-Length says")
	}
	return q, nil
}

// check compares the token.
func (a *admin) check(text string) *deny.Reason {
	at, wait := a.guard.Check(a.known, text)
	switch {
	case wait > 0:
		return Locked(wait)
	case at < 0:
		return &deny.Reason{
			Layer: deny.LayerTools, Code: deny.BadToken, Why: "it is not the admin token of a team at this address",
			Mend: "send what front.guests.adminTokenFile holds as `Authorization: Bearer`",
		}
	}
	return nil
}

// Locked is the refusal of everybody after wrong tokens.
func Locked(wait time.Duration) *deny.Reason {
	return &deny.Reason{
		Layer: deny.LayerTools, Code: deny.Locked, Why: "too many wrong admin tokens came in a row; none is compared until this is over, the right one neither",
		Mend: "wait; see who tries: `bulkhead logs`, or the records of front", RetryAfter: max(1, int(math.Ceil(wait.Seconds()))),
	}
}

// pass waits for what the warden says, and answers that.
func (a *admin) pass(w http.ResponseWriter, r *http.Request, q protocol.AdminRequest) *deny.Reason {
	ctx, cancel := context.WithTimeout(r.Context(), adminTimeout)
	defer cancel()
	answer, err := a.s.desk.ask(ctx, q)
	switch {
	case errors.Is(err, errBusy):
		return &deny.Reason{Layer: deny.LayerTools, Code: deny.ToolRate, Why: fmt.Sprintf("%d requests are being answered", maxAdmin), Mend: "wait for an answer first", RetryAfter: 1}
	case err != nil:
		return away("", "the warden did not answer in time; what was asked may have been done: ask again, it is done once")
	case answer.Reason != nil:
		return answer.Reason
	}
	h := w.Header()
	h.Set("Content-Type", "application/json")
	h.Set("X-Content-Type-Options", "nosniff")
	h.Set("Cache-Control", "no-store") // it may hold a token
	h.Set("Content-Length", strconv.Itoa(len(answer.Body)+1))
	w.WriteHeader(answer.Status)
	_, _ = w.Write(append(answer.Body, '\n')) // #nosec G705 -- JSON, said to be, with nosniff
	return nil
}
