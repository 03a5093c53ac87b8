// Package notify tells people: the operator, by a record that `bulkhead watch`
// and the gateway's log show, or a webhook that the manifest lists.
//
// A webhook is posted to through the agent's own dialer, as everything that
// leaves: the manifest's egress decides again, the address that is dialled is
// the one that was checked. No redirect is followed. What goes there is said in
// [Notice]. Who knows a webhook's path may post to it as well: records, answers and
// errors have its origin and its place in the manifest alone.
package notify

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/url"
	"slices"
	"strconv"
	"strings"
	"time"
	"unicode"

	"bulkhead/internal/deny"
	"bulkhead/internal/record"
	"bulkhead/internal/tool"
)

// Bounds.
const (
	maxSubject = 200
	maxMessage = 10_000
	postTime   = 10 * time.Second
	maxAnswer  = 64 << 10 // bytes of a webhook's answer that are read, and thrown away
)

// Config says who can be told.
type Config struct {
	Team, Agent string
	Webhooks    []string // https URLs
	Log         *record.Log
	// Dial reaches what the agent's egress lists, and refuses everything else.
	Dial func(ctx context.Context, host string, port uint16) (net.Conn, error)
	// Way, when set, posts instead of one made with Dial: for tests.
	Way http.RoundTripper
}

// Notify tells people.
type Notify struct {
	cfg Config
	way http.RoundTripper
}

// New makes it.
func New(cfg Config) *Notify {
	n := &Notify{cfg: cfg, way: cfg.Way}
	if n.way == nil {
		n.way = &http.Transport{
			DisableKeepAlives: true, TLSHandshakeTimeout: postTime,
			DialContext: func(ctx context.Context, _, address string) (net.Conn, error) {
				host, port, err := net.SplitHostPort(address)
				if err != nil {
					return nil, err
				}
				p, err := strconv.ParseUint(port, 10, 16)
				if err != nil {
					return nil, err
				}
				return cfg.Dial(ctx, host, uint16(p)) // #nosec G115 -- 16 bits
			},
		}
	}
	return n
}

// Tools are the tools of the group.
func (n *Notify) Tools() []tool.Tool {
	return []tool.Tool{{
		Name: "notify_send", Group: tool.Notices, Effect: true, Run: n.send, Scope: n.scope,
		Summary: "Tell a person: the operator of this host, or a webhook that the manifest lists.",
		Fields: []tool.Field{
			{Name: "channel", Type: tool.String, Enum: []string{"operator", "webhook"}, Default: "operator", Shown: true, Doc: "Who is told"},
			{Name: "to", Type: tool.String, Max: 2048, Show: n.shown, Doc: "With webhook: its URL, as the manifest lists it; needed when it lists several"},
			{Name: "subject", Type: tool.String, Max: maxSubject, Default: "", Doc: "One line"},
			{Name: "message", Aliases: []string{"text", "body"}, Type: tool.String, Required: true, Min: 1, Max: maxMessage, Doc: "What to say"},
		},
	}}
}

// Notice is what a webhook is posted.
type Notice struct {
	Team    string `json:"team"`
	Agent   string `json:"agent"`
	Time    string `json:"time"` // RFC 3339, UTC
	Subject string `json:"subject,omitempty"`
	Message string `json:"message"`
}

// scope is who is told, as a grant may be bound to it: "operator", or the webhook.
func (n *Notify) scope(in tool.Input) (string, *deny.Reason) {
	if in.String("channel") == "operator" {
		return "operator", nil
	}
	to := in.String("to")
	if to == "" && len(n.cfg.Webhooks) == 1 {
		to = n.cfg.Webhooks[0]
	}
	if !slices.Contains(n.cfg.Webhooks, to) {
		return "", tool.Refuse(deny.ToolNotAllowed, "notify_send", "the manifest lists no such webhook", "name one of tools.webhooks of agents."+n.cfg.Agent+" in bulkhead.yaml, as it is written there")
	}
	return to, nil
}

// shown is what may be said of a webhook: its origin (RFC 6454, 4), and which of the
// manifest's it is.
func (n *Notify) shown(webhook string) string {
	u, err := url.Parse(webhook)
	if err != nil || u.Host == "" {
		return "(no URL)"
	}
	origin := u.Scheme + "://" + u.Host
	if i := slices.Index(n.cfg.Webhooks, webhook); i >= 0 {
		return fmt.Sprintf("%s (tools.webhooks[%d])", origin, i)
	}
	return origin
}

func (n *Notify) send(ctx context.Context, c *tool.Call) (any, error) {
	channel := c.In.String("channel")
	to, reason := n.scope(c.In)
	if reason != nil {
		return nil, reason
	}
	if channel == "operator" {
		if err := c.Begin(ctx); err != nil {
			return nil, err
		}
		n.cfg.Log.Write(record.Record{
			Agent: n.cfg.Agent, Kind: record.Life, Verdict: record.Allowed, Target: record.Notice, Detail: plain(c.In.String("subject"), c.In.String("message")),
		})
		return map[string]any{"channel": channel, "sent": true}, nil
	}
	if err := c.Begin(ctx); err != nil {
		return nil, err
	}
	status, err := n.post(ctx, to, Notice{
		Team: n.cfg.Team, Agent: n.cfg.Agent, Time: time.Now().UTC().Format(time.RFC3339Nano), Subject: c.In.String("subject"), Message: c.In.String("message"),
	})
	if err != nil {
		return nil, err
	}
	return map[string]any{"channel": channel, "to": n.shown(to), "sent": true, "status": status}, nil
}

func (n *Notify) post(ctx context.Context, to string, notice Notice) (int, error) {
	body, err := json.Marshal(notice)
	if err != nil {
		return 0, err
	}
	ctx, cancel := context.WithTimeout(ctx, postTime)
	defer cancel()
	q, err := http.NewRequestWithContext(ctx, http.MethodPost, to, bytes.NewReader(body))
	if err != nil {
		return 0, errors.New("notify: the webhook's URL is malformed") // the error has the URL
	}
	q.Header.Set("Content-Type", "application/json")
	q.Header.Set("User-Agent", "bulkhead")
	// Not by a Client: its errors have the URL, or a Location.
	a, err := n.way.RoundTrip(q)
	if err != nil {
		// A *deny.Reason of the egress in its chain is given as it is.
		return 0, fmt.Errorf("webhook: %w", asUnavailable(ctx, err))
	}
	defer func() { _ = a.Body.Close() }()
	_, _ = io.CopyN(io.Discard, a.Body, maxAnswer)
	if a.StatusCode < 200 || a.StatusCode > 299 {
		return 0, tool.Refuse(deny.ToolUnavailable, "notify_send", fmt.Sprintf("the webhook answered %d", a.StatusCode), "look at what the webhook expects; a redirect is not followed")
	}
	return a.StatusCode, nil
}

func asUnavailable(ctx context.Context, err error) error {
	var reason *deny.Reason
	switch {
	case errors.As(err, &reason):
		return reason
	case ctx.Err() != nil:
		return tool.Refuse(deny.ToolTimeout, "notify_send", "the webhook did not answer in time", "try again later")
	}
	return tool.Refuse(deny.ToolUnavailable, "notify_send", "the webhook cannot be reached: "+deny.Unquoted(err.Error()), "try again later")
}

// plain makes one line of what an agent wrote, without what would act on a
// terminal.
func plain(subject, message string) string {
	text := message
	if subject != "" {
		text = subject + ": " + message
	}
	text = strings.ToValidUTF8(text, "\ufffd") // a byte alone may be a control of a terminal that is not in UTF-8
	return strings.Join(strings.FieldsFunc(text, func(r rune) bool { return unicode.IsSpace(r) || !unicode.IsPrint(r) }), " ")
}
