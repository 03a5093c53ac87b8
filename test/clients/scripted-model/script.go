package main

import (
	"encoding/json"
	"fmt"
	"net/http"
	"regexp"
	"strings"
)

// conversation is the part of a chat completion request that is read.
type conversation struct {
	Model    string `json:"model"`
	Stream   bool   `json:"stream"`
	Messages []struct {
		Role    string  `json:"role"`
		Content content `json:"content"`
	} `json:"messages"`
}

// content is a message's text: a string, or a list of parts.
type content string

// UnmarshalJSON takes both forms, and null.
func (c *content) UnmarshalJSON(b []byte) error {
	var s string
	if json.Unmarshal(b, &s) == nil {
		*c = content(s)
		return nil
	}
	var parts []struct {
		Text string `json:"text"`
	}
	if err := json.Unmarshal(b, &parts); err != nil {
		return err
	}
	var texts []string
	for _, p := range parts {
		texts = append(texts, p.Text)
	}
	*c = content(strings.Join(texts, "\n"))
	return nil
}

// answer is a tool call, or the final text.
type answer struct {
	Tool, Arguments string
	Text            string
}

// call is one line of a script.
var call = regexp.MustCompile(`(?m)^\s*CALL (\S+) (\{.*\})\s*$`)

// answer finds the first scripted call without a result.
func (c *conversation) answer() answer {
	var script, results []string
	for _, m := range c.Messages {
		switch m.Role {
		case "user":
			script = append(script, string(m.Content))
		case "tool":
			results = append(results, strings.TrimSpace(string(m.Content)))
		}
	}
	calls := call.FindAllStringSubmatch(strings.Join(script, "\n"), -1)
	if len(results) < len(calls) {
		next := calls[len(results)]
		return answer{Tool: next[1], Arguments: next[2]}
	}
	return answer{Text: "FINAL: " + strings.Join(results, " | ")}
}

func (a answer) message(id string) (map[string]any, string) {
	if a.Tool == "" {
		return map[string]any{"role": "assistant", "content": a.Text}, "stop"
	}
	return map[string]any{"role": "assistant", "content": nil, "tool_calls": []map[string]any{{
		"index": 0, "id": "call_" + id, "type": "function",
		"function": map[string]any{"name": a.Tool, "arguments": a.Arguments},
	}}}, "tool_calls"
}

var usage = map[string]any{"prompt_tokens": 10, "completion_tokens": 5, "total_tokens": 15}

// whole is the answer in one piece.
func (a answer) whole(id, model string) map[string]any {
	msg, why := a.message(id)
	return map[string]any{
		"id": id, "object": "chat.completion", "created": 1, "model": model, "usage": usage,
		"choices": []map[string]any{{"index": 0, "message": msg, "finish_reason": why}},
	}
}

// stream sends the answer as server-sent events: the message, its end, the
// usage, and the mark of the end.
func (a answer) stream(w http.ResponseWriter, id, model string) {
	msg, why := a.message(id)
	chunk := func(choices ...map[string]any) map[string]any {
		if choices == nil {
			choices = []map[string]any{}
		}
		return map[string]any{"id": id, "object": "chat.completion.chunk", "created": 1, "model": model, "choices": choices}
	}
	last := chunk()
	last["usage"] = usage
	w.Header().Set("Content-Type", "text/event-stream")
	flush := http.NewResponseController(w)
	for _, event := range []map[string]any{
		chunk(map[string]any{"index": 0, "delta": msg, "finish_reason": nil}),
		chunk(map[string]any{"index": 0, "delta": map[string]any{}, "finish_reason": why}),
		last,
	} {
		text, err := json.Marshal(event)
		if err != nil {
			return
		}
		if _, err := fmt.Fprintf(w, "data: %s\n\n", text); err != nil {
			return
		}
		_ = flush.Flush()
	}
	_, _ = fmt.Fprint(w, "data: [DONE]\n\n")
}
