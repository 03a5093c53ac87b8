package event

import (
	"context"
	"crypto/rand"
	"fmt"
	"time"

	"bulkhead/internal/deny"
	"bulkhead/internal/tool"
	"bulkhead/internal/topic"
	"bulkhead/internal/topic/protocol"
)

// PublicTopic is one public topic of a list. Last, Messages and Subscriptions
// are there when the agent may read it.
type PublicTopic struct {
	Topic         string         `json:"topic"`
	Publish       bool           `json:"publish"`
	Read          bool           `json:"read"`
	Last          int64          `json:"last"`
	Messages      int64          `json:"messages"`
	Subscriptions []Subscription `json:"subscriptions"`
}

// server refuses what can be seen to be in vain before the server is asked,
// which decides.
func (e *Events) server(name string) error {
	switch {
	case !topic.Named(name):
		return topic.Policy{}.Refusal("", topic.Read, name)
	case e.public == nil:
		return tool.Refuse(deny.ToolNotAllowed, topic.Prefix+name, "the manifest gives this team no public topics",
			"write topics: {"+name+": {publish: [AGENT], read: [AGENT]}} into bulkhead.yaml; topics of the agent's own do not begin with "+topic.Prefix)
	}
	return nil
}

// publishPublic is on record as started before the server, which is another
// process, is asked.
func (e *Events) publishPublic(ctx context.Context, c *tool.Call, name string) (any, error) {
	if err := e.server(name); err != nil {
		return nil, err
	}
	if err := c.Begin(ctx); err != nil {
		return nil, err
	}
	// What is asked for happens also when the caller leaves, so that its record
	// says what became of it.
	out, err := e.public.Publish(context.WithoutCancel(ctx), protocol.Publish{Topic: name, Key: rand.Text(), Message: c.In.Raw("message")})
	return map[string]any{"topic": topic.Prefix + name, "messageId": messageID(topic.Prefix+name, out.Seq), "seq": out.Seq}, err
}

func (e *Events) subscribePublic(ctx context.Context, c *tool.Call, name string) (any, error) {
	if err := e.server(name); err != nil {
		return nil, err
	}
	if err := c.Begin(ctx); err != nil {
		return nil, err
	}
	sub := c.In.String("subscription")
	out, err := e.public.Subscribe(context.WithoutCancel(ctx), protocol.Subscribe{Topic: name, Subscription: sub, FromStart: c.In.String("from") == "start"})
	return map[string]any{"topic": topic.Prefix + name, "subscription": sub, "subscriptionId": sub, "position": out.Position}, err
}

func (e *Events) unsubscribePublic(ctx context.Context, c *tool.Call, name string) (any, error) {
	if err := e.server(name); err != nil {
		return nil, err
	}
	if err := c.Begin(ctx); err != nil {
		return nil, err
	}
	sub := c.In.String("subscription")
	out, err := e.public.Unsubscribe(context.WithoutCancel(ctx), protocol.Subscription{Topic: name, Subscription: sub})
	return map[string]any{"topic": topic.Prefix + name, "subscription": sub, "unsubscribed": out.Ended}, err
}

func (e *Events) publicSource(q query, name string) source {
	if err := e.server(name); err != nil {
		return source{
			fresh: func() <-chan struct{} { return nil },
			read:  func(context.Context) (Polled, error) { return Polled{}, err },
		}
	}
	ask := protocol.Read{Topic: name, Subscription: q.sub, Limit: int(q.limit)}
	if q.after >= 0 {
		ask.After = &q.after
	}
	return source{
		fresh: func() <-chan struct{} { return e.public.News(name) },
		read: func(ctx context.Context) (Polled, error) {
			// The subscription moves whether the caller waits or not.
			got, err := e.public.Read(context.WithoutCancel(ctx), ask)
			out := Polled{Topic: q.topic, Messages: make([]Message, len(got.Messages)), Position: got.Position, Missed: got.Missed}
			for i, m := range got.Messages {
				out.Messages[i] = Message{
					Seq: m.Seq, ID: messageID(q.topic, m.Seq), Topic: q.topic, From: m.From, Time: time.UnixMilli(m.Time).UTC().Format(time.RFC3339Nano), Body: m.Body,
				}
			}
			return out, err
		},
	}
}

// withPublic adds the public topics to a list. When their server is away the
// agent's own are listed all the same.
func (e *Events) withPublic(ctx context.Context, out map[string]any) map[string]any {
	if e.public == nil {
		return out
	}
	all, err := e.public.List(ctx)
	if err != nil {
		out["publicTopicsMissing"] = fmt.Sprint(err)
		return out
	}
	list := []PublicTopic{}
	for _, t := range all.Topics {
		one := PublicTopic{Topic: topic.Prefix + t.Name, Publish: t.Publish, Read: t.Read, Last: t.Last, Messages: t.Messages, Subscriptions: []Subscription{}}
		for _, s := range t.Subscriptions {
			one.Subscriptions = append(one.Subscriptions, Subscription{s.Subscription, s.Position})
		}
		list = append(list, one)
	}
	out["publicTopics"] = list
	return out
}
