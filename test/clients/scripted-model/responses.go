package main

import (
	"encoding/json"
	"strings"
)

// responses speaks OpenAI's responses
// (https://platform.openai.com/docs/api-reference/responses).
type responses struct{}

// custom is the type of tools that take text instead of JSON. Their script
// line is CALL tool {"input": "text"}.
const custom = "custom"

func (responses) read(body []byte) (*conversation, error) {
	var r struct {
		Model  string          `json:"model"`
		Stream bool            `json:"stream"`
		Input  json.RawMessage `json:"input"`
		Tools  []struct {
			Type string `json:"type"`
			Name string `json:"name"`
		} `json:"tools"`
	}
	if err := json.Unmarshal(body, &r); err != nil {
		return nil, err
	}
	c := &conversation{Model: r.Model, Stream: r.Stream, Entries: 1, Tools: map[string]string{}}
	for _, t := range r.Tools {
		c.Tools[t.Name] = t.Type
	}
	var alone string
	if json.Unmarshal(r.Input, &alone) == nil {
		c.Said = []string{alone}
		return c, nil
	}
	var items []struct {
		Type    string  `json:"type"`
		Role    string  `json:"role"`
		Content content `json:"content"`
		Output  content `json:"output"`
	}
	if err := json.Unmarshal(r.Input, &items); err != nil {
		return nil, err
	}
	c.Entries = len(items)
	for _, i := range items {
		switch {
		case strings.HasSuffix(i.Type, "_call_output"):
			c.Results = append(c.Results, i.Output.text())
		case i.Role == "user":
			c.Said = append(c.Said, i.Content.text())
		}
	}
	return c, nil
}

func (responses) item(id string, a answer) object {
	switch {
	case a.Tool == "":
		return object{"type": "message", "id": "msg_" + id, "role": "assistant", "status": "completed", "content": []object{{"type": "output_text", "text": a.Text, "annotations": []object{}}}}
	case a.Kind == custom:
		var in struct {
			Input string `json:"input"`
		}
		_ = json.Unmarshal([]byte(a.Arguments), &in) // no input: an empty text
		return object{"type": "custom_tool_call", "id": "ct_" + id, "call_id": "call_" + id, "name": a.Tool, "input": in.Input, "status": "completed"}
	}
	return object{"type": "function_call", "id": "fc_" + id, "call_id": "call_" + id, "name": a.Tool, "arguments": a.Arguments, "status": "completed"}
}

func (s responses) whole(id string, c *conversation, a answer) object {
	return object{
		"id": "resp_" + id, "object": "response", "created_at": 1, "model": c.Model, "status": "completed", "output": []object{s.item(id, a)},
		"usage": object{
			"input_tokens": 10, "output_tokens": 5, "total_tokens": 15,
			"input_tokens_details": object{"cached_tokens": 0}, "output_tokens_details": object{"reasoning_tokens": 0},
		},
	}
}

func (s responses) events(id string, c *conversation, a answer) []event {
	begun, added := s.whole(id, c, a), s.item(id, a)
	begun["status"], begun["output"] = "in_progress", []object{}
	var delta event
	switch {
	case a.Tool == "":
		added["content"] = []object{}
		delta = event{"response.output_text.delta", object{"item_id": added["id"], "output_index": 0, "content_index": 0, "delta": a.Text}}
	case a.Kind == custom:
		delta = event{"response.custom_tool_call_input.done", object{"item_id": added["id"], "output_index": 0, "input": added["input"]}}
	default:
		added["arguments"] = ""
		delta = event{"response.function_call_arguments.done", object{"item_id": added["id"], "output_index": 0, "arguments": a.Arguments}}
	}
	events := []event{
		{"response.created", object{"response": begun}},
		{"response.output_item.added", object{"output_index": 0, "item": added}},
		delta,
		{"response.output_item.done", object{"output_index": 0, "item": s.item(id, a)}},
		{"response.completed", object{"response": s.whole(id, c, a)}},
	}
	for i := range events {
		events[i].data["type"], events[i].data["sequence_number"] = events[i].name, i
	}
	return events
}

func (responses) end() string { return "" }
