package main

import (
	"errors"
	"fmt"
	"os"
	"strings"

	"bulkhead/internal/wire"
)

// topicKinds are attempts at public topics in which the agent has no part.
func topicKinds() map[string]kind {
	return map[string]kind{
		"topics.publish": {do: topicsPublish},
		"topics.read":    {do: topicsRead},
		"topics.forge":   {do: topicsForge},
	}
}

// topicsPublish publishes by its gateway's tool, with its own token. Names are
// topics.
func topicsPublish(t *trial) error {
	for _, name := range t.Names {
		if over, err := callTool(t, "events_publish", fmt.Sprintf(`{"topic":%q,"message":"forged"}`, name), name); over || err != nil {
			return err
		}
	}
	return nil
}

// topicsRead subscribes and polls by its gateway's tools.
func topicsRead(t *trial) error {
	for _, name := range t.Names {
		for _, call := range []string{"events_subscribe", "events_poll"} {
			if over, err := callTool(t, call, fmt.Sprintf(`{"topic":%q}`, name), name); over || err != nil {
				return err
			}
		}
	}
	return nil
}

// callTool calls a tool; over: it went through.
func callTool(t *trial, name, input, what string) (over bool, err error) {
	token := ""
	if os.Getenv(wire.EnvTokenFile) != "" { // else it has neither tools nor messages, and none
		if token, err = ownToken(); err != nil {
			return false, err
		}
	}
	err = askGatewayWith(t, token, "POST", "/v1/tools/"+name, input)
	if err != nil && !errors.As(err, new(refused)) {
		return false, err
	}
	if over = t.step(name+" "+what, err); over {
		t.saw("%s of %s was taken", name, what)
	}
	return over, nil
}

// topicsForge speaks to the server as a gateway does, without its token. Names
// are topics without their prefix.
func topicsForge(t *trial) error {
	auth := request{"auth", map[string]string{"token": strings.Repeat("0", 64)}}
	for _, path := range t.Paths {
		for _, name := range t.Names {
			for _, one := range []request{
				{"publish", map[string]any{"topic": name, "key": "forged", "message": "forged"}},
				{"subscribe", map[string]any{"topic": name, "subscription": "forged"}},
				{"read", map[string]any{"topic": name, "after": 0, "limit": 1}},
				{"list", struct{}{}},
			} {
				for what, said := range map[string][]request{"nobody": {one}, "who has a token of nobody": {auth, one}} {
					no, err := converse(path, "topics", said...)
					if err != nil {
						return fmt.Errorf("topics: %w", err)
					}
					if t.step(one.verb+" "+name+" as "+what, no) {
						t.saw("topics answered %s to %s", one.verb, what)
						return nil
					}
				}
			}
		}
	}
	return nil
}
