package message

import (
	"context"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"io"
	"net/url"
	"os"
	"os/signal"
	"strconv"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"bulkhead/internal/adapter/draftkey"
	"bulkhead/internal/shim/ask"
	"bulkhead/internal/wire"
)

const usage = `usage: bulkhead msg COMMAND, inside the runtime of an agent that has messages

  send (--to AGENT | --channel CHANNEL) --type TYPE [--priority low|normal|high] [--reply-to N] [--key UUID] [--text] [BODY]
                      BODY is JSON, or plain text with --text; without it standard input is read
  receive [--max N] [--wait 30s] [--lease 30s] [--channel CHANNEL] [--ack]
  ack LEASE...
  refuse [--delay 5s] [--reason TEXT] LEASE...
  extend --for 1m LEASE...
  thread [--limit N] [--after N] CHANNEL N
  replay [--from N] [--limit N] CHANNEL
  channels
  request (--join AGENT | --leave AGENT) --reason TEXT CHANNEL
                      for the orchestrator: ask an operator for it; the answer is a message of type channel_decided
  outbox              what waits for the adapter, and what it refused

Answers are JSON on standard output. Exit codes: 0 done, 1 failed (try again with the same key), 2 bad input, 4 refused.
`

func misuse(format string, args ...any) error {
	return &ask.Misuse{Err: fmt.Errorf(format, args...), Help: "bulkhead msg --help"}
}

// Main is `bulkhead-shim msg`. It returns the exit code.
func Main(args []string) int {
	ctx, stop := signal.NotifyContext(context.Background(), unix.SIGTERM, unix.SIGINT)
	defer stop()
	out, err := dispatch(ctx, args)
	if len(out) > 0 {
		_, _ = os.Stdout.Write(out)
	}
	if err == nil {
		return wire.ExitOK
	}
	if errors.Is(err, flag.ErrHelp) {
		fmt.Print(usage)
		return wire.ExitOK
	}
	fmt.Fprintln(os.Stderr, "error:", err)
	return ask.ExitCode(err)
}

func dispatch(ctx context.Context, args []string) ([]byte, error) {
	if len(args) == 0 || args[0] == "--help" || args[0] == "-h" || args[0] == "help" {
		return nil, flag.ErrHelp
	}
	prepare, ok := commands[args[0]]
	if !ok {
		return nil, misuse("%q is not a command", args[0])
	}
	f := flag.NewFlagSet(args[0], flag.ContinueOnError)
	f.SetOutput(io.Discard)
	run := prepare(f)
	if err := f.Parse(args[1:]); errors.Is(err, flag.ErrHelp) {
		return nil, err
	} else if err != nil {
		return nil, misuse("%s: %w", args[0], err)
	}
	g, err := ask.FromEnvironment()
	if err != nil {
		return nil, err
	}
	return run(ctx, g, f.Args())
}

type action func(ctx context.Context, g *ask.Gateway, args []string) ([]byte, error)

var commands = map[string]func(*flag.FlagSet) action{
	"send": send, "receive": receive, "ack": ack, "refuse": refuse, "extend": extend,
	"thread": thread, "replay": replay, "channels": get("/v1/channels"), "request": request, "outbox": get("/v1/outbox"),
}

func get(path string) func(*flag.FlagSet) action {
	return func(*flag.FlagSet) action {
		return func(ctx context.Context, g *ask.Gateway, args []string) ([]byte, error) {
			if len(args) > 0 {
				return nil, misuse("no arguments are taken")
			}
			return g.Call(ctx, "GET", path, nil)
		}
	}
}

func send(f *flag.FlagSet) action {
	to, channel, kind := f.String("to", "", "agent"), f.String("channel", "", "channel"), f.String("type", "", "type")
	priority, key := f.String("priority", "", "low, normal or high"), f.String("key", "", "UUID")
	reply := f.Uint64("reply-to", 0, "sequence id of what this answers")
	plain := f.Bool("text", false, "the body is plain text")
	return func(ctx context.Context, g *ask.Gateway, args []string) ([]byte, error) {
		body, err := body(args, *plain)
		if err != nil {
			return nil, err
		}
		if *key == "" {
			*key = draftkey.New()
		}
		d := map[string]any{"idempotency_key": *key, "type": *kind, "body": body}
		for name, v := range map[string]string{"to": *to, "channel": *channel, "priority": *priority} {
			if v != "" {
				d[name] = v
			}
		}
		if *reply > 0 {
			d["reply_to_sequence_id"] = *reply
		}
		out, err := g.Call(ctx, "POST", "/v1/messages", d)
		var said *ask.Failure
		if err != nil && !errors.As(err, &said) {
			err = fmt.Errorf("%w; send it again with --key %s, which stores it once", err, *key)
		}
		return out, err
	}
}

// maxInput bounds what is read from standard input; the gateway refuses less.
const maxInput = 4 << 20

func body(args []string, plain bool) (json.RawMessage, error) {
	var text []byte
	switch len(args) {
	case 0:
		var err error
		if text, err = io.ReadAll(io.LimitReader(os.Stdin, maxInput)); err != nil {
			return nil, fmt.Errorf("standard input: %w", err)
		}
	case 1:
		text = []byte(args[0])
	default:
		return nil, misuse("the body is one argument, not %d", len(args))
	}
	if plain {
		return json.Marshal(string(text))
	}
	if !json.Valid(text) {
		return nil, misuse("the body is not JSON; with --text it need not be")
	}
	return text, nil
}

func receive(f *flag.FlagSet) action {
	q := struct {
		Max     int           `json:"max,omitempty"`
		Wait    time.Duration `json:"wait,omitempty"`
		Lease   time.Duration `json:"lease,omitempty"`
		Channel string        `json:"channel,omitempty"`
	}{}
	f.IntVar(&q.Max, "max", 1, "how many")
	f.DurationVar(&q.Wait, "wait", 0, "how long to wait for the first")
	f.DurationVar(&q.Lease, "lease", 0, "how long they are leased")
	f.StringVar(&q.Channel, "channel", "", "only from this one")
	at := f.Bool("ack", false, "acknowledge them at once")
	return func(ctx context.Context, g *ask.Gateway, args []string) ([]byte, error) {
		if len(args) > 0 {
			return nil, misuse("no arguments are taken")
		}
		out, err := g.Call(ctx, "POST", "/v1/messages:receive", q)
		if err != nil || !*at {
			return out, err
		}
		var got struct {
			Deliveries []struct {
				Lease string `json:"lease"`
			} `json:"deliveries"`
		}
		if err := json.Unmarshal(out, &got); err != nil {
			return out, fmt.Errorf("the gateway's answer: %w", err)
		}
		leases := make([]string, len(got.Deliveries))
		for i, d := range got.Deliveries {
			leases[i] = d.Lease
		}
		if len(leases) > 0 {
			_, err = settle(ctx, g, "ack", map[string]any{"leases": leases}, leases)
		}
		return out, err
	}
}

func settle(ctx context.Context, g *ask.Gateway, verb string, q map[string]any, leases []string) ([]byte, error) {
	if len(leases) == 0 {
		return nil, misuse("%s: which leases?", verb)
	}
	out, err := g.Call(ctx, "POST", "/v1/messages:"+verb, q)
	if err == nil {
		err = each(out)
	}
	return out, err
}

func ack(*flag.FlagSet) action {
	return func(ctx context.Context, g *ask.Gateway, args []string) ([]byte, error) {
		return settle(ctx, g, "ack", map[string]any{"leases": args}, args)
	}
}

func refuse(f *flag.FlagSet) action {
	delay := f.Duration("delay", 0, "until the next try")
	reason := f.String("reason", "", "in words")
	return func(ctx context.Context, g *ask.Gateway, args []string) ([]byte, error) {
		all := make([]map[string]any, len(args))
		for i, lease := range args {
			all[i] = map[string]any{"lease": lease, "delay": *delay, "reason": *reason}
		}
		return settle(ctx, g, "refuse", map[string]any{"refusals": all}, args)
	}
}

func extend(f *flag.FlagSet) action {
	d := f.Duration("for", 0, "how long from now")
	return func(ctx context.Context, g *ask.Gateway, args []string) ([]byte, error) {
		if *d <= 0 {
			return nil, misuse("extend: --for how long?")
		}
		return settle(ctx, g, "extend", map[string]any{"leases": args, "duration": *d}, args)
	}
}

func thread(f *flag.FlagSet) action {
	limit, after := f.Uint64("limit", 0, "how many"), f.Uint64("after", 0, "the last sequence id of the page before")
	return func(ctx context.Context, g *ask.Gateway, args []string) ([]byte, error) {
		if len(args) != 2 {
			return nil, misuse("thread: CHANNEL and a sequence id")
		}
		return g.Call(ctx, "GET", "/v1/channels/"+url.PathEscape(args[0])+"/threads/"+url.PathEscape(args[1])+query("limit", *limit, "after", *after), nil)
	}
}

func replay(f *flag.FlagSet) action {
	limit, from := f.Uint64("limit", 0, "how many"), f.Uint64("from", 0, "the first sequence id")
	return func(ctx context.Context, g *ask.Gateway, args []string) ([]byte, error) {
		if len(args) != 1 {
			return nil, misuse("replay: which CHANNEL?")
		}
		return g.Call(ctx, "GET", "/v1/channels/"+url.PathEscape(args[0])+"/messages"+query("limit", *limit, "from", *from), nil)
	}
}

func request(f *flag.FlagSet) action {
	join, leave := f.String("join", "", "agent"), f.String("leave", "", "agent")
	reason := f.String("reason", "", "in words, for the operator")
	return func(ctx context.Context, g *ask.Gateway, args []string) ([]byte, error) {
		if len(args) != 1 || (*join == "") == (*leave == "") {
			return nil, misuse("request: one of --join AGENT and --leave AGENT, and a CHANNEL")
		}
		q := map[string]any{"channel": args[0], "agent": *join, "change": "join", "reason": *reason}
		if *leave != "" {
			q["agent"], q["change"] = *leave, "leave"
		}
		return g.Call(ctx, "POST", "/v1/channels:request", q)
	}
}

// query names the parameters that are not 0.
func query(a string, x uint64, b string, y uint64) string {
	var parts []string
	if x > 0 {
		parts = append(parts, a+"="+strconv.FormatUint(x, 10))
	}
	if y > 0 {
		parts = append(parts, b+"="+strconv.FormatUint(y, 10))
	}
	if len(parts) == 0 {
		return ""
	}
	return "?" + strings.Join(parts, "&")
}
